"""The one table that gateways share when they ask together, and the origins in it."""

import pytest
from django.db import transaction

from dispatch import routes
from ledger import generations
from tests.build.controlplane import make_tenant


@pytest.mark.parametrize(
    ("public", "origins"),
    [
        ("https://mill.example", ["https://mill.example"]),
        ("https://mill.example:8443/console/", ["https://mill.example:8443"]),
        ("http://127.0.0.1:8100", ["http://127.0.0.1:8100", "http://localhost:8100", "http://[::1]:8100"]),
        ("http://localhost", ["http://127.0.0.1", "http://localhost", "http://[::1]"]),
        ("http://[::1]:8100", ["http://127.0.0.1:8100", "http://localhost:8100", "http://[::1]:8100"]),
    ],
)
def test_the_console_on_this_machine_has_every_loopback_name(public: str, origins: list[str]):
    assert routes.console_origins(public) == origins


@pytest.mark.django_db(transaction=True)
def test_the_table_is_built_once_for_all_who_ask_and_anew_after_each_change():
    make_tenant("acme")
    first = routes.newest_table()
    assert routes.newest_table() is first
    make_tenant("beta")
    second = routes.newest_table()
    assert second.generation > first.generation
    assert [tenant.slug for tenant in second.tenants] == ["acme", "beta"]
    with transaction.atomic():
        assert routes.newest_table() is not second  # what a transaction has not committed is its own
        generations.bump(generations.ROUTES)
    assert routes.newest_table().generation == second.generation + 1

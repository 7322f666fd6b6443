"""Keys, usage, quota and nodes."""

import csv
import io

import pytest

from kernel import clock
from metering import booking
from tenants.models import ApiKey
from tests.build import controlplane as build
from tests.controlplane.metering.usage_records import GATEWAY, record


def test_a_keys_text_is_alone_on_stdout_and_in_no_list(signed_in, shell):
    key = shell(
        "keys", "create", "prod", "--requests-per-minute", "60", "--expires", "2100-01-01T00:00:00Z"
    ).out.strip()
    assert key.startswith("mp_")
    listed = shell("keys", "list")
    assert key not in listed.out
    row = shell("keys", "list", "-o", "json").json[0]
    assert (row["name"], row["requests_per_minute"], row["scopes"]) == ("prod", 60, ["inference"])


def test_revoking_by_name(signed_in, shell):
    shell("keys", "create", "prod")
    shell("keys", "revoke", "prod")
    assert ApiKey._base_manager.get().revoked_at is not None
    shell("keys", "revoke", "prod", want=4)


def test_two_keys_of_one_name_have_to_be_told_apart(signed_in, shell):
    shell("keys", "create", "prod")
    ident = shell("keys", "create", "prod", "-o", "json").json["id"]
    assert ident in shell("keys", "revoke", "prod", want=2).err
    shell("keys", "revoke", ident)


def test_usage_as_table_json_and_csv(signed_in, shell):
    tenant = signed_in.tenant
    booking.book(gateway_id=GATEWAY, records=[record(tenant.id, at=clock.now(), completion_tokens=1234)])
    assert "1,234" in shell("usage", "--by", "key").out
    assert shell("usage", "--by", "endpoint", "-o", "json").json["totals"]["completion_tokens"] == 1234
    lines = list(csv.reader(io.StringIO(shell("usage", "-o", "csv").out)))
    assert lines[0][0] == "day"
    assert len(lines) == 2
    assert "is not a valid choice" in shell("usage", "--by", "colour", want=1).err


def test_no_usage_is_said_in_words(signed_in, shell):
    assert "Nothing was used" in shell("usage").err


def test_quota_in_words(signed_in, shell):
    shown = shell("quota").out
    assert "hbm_bytes" in shown
    assert "GiB" in shown


@pytest.fixture
def admin(plane, shell):
    user = build.make_user(admin=True)
    shell("login", "--email", user.email, "--password-stdin", stdin=build.PASSWORD)
    return plane


def test_a_machine_joins_with_the_token_and_is_steered_by_name(admin, shell):
    made = shell("nodes", "join", "--name", "mill-2", "-o", "json").json
    assert made["token"].startswith("mpj_")
    admin.worker.join_agent(name="mill-1")
    assert [row["name"] for row in shell("nodes", "list", "-o", "json").json] == ["mill-1"]
    assert "cpu" in shell("nodes", "devices").out
    assert shell("nodes", "cordon", "mill-1", "-o", "json").json["state"] == "cordoned"
    assert shell("nodes", "uncordon", "mill-1", "-o", "json").json["state"] == "ready"

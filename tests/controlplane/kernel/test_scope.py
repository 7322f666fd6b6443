"""Tenant scope fails closed."""

import pytest

from kernel import scope
from tenants.models import ApiKey
from tests.build.controlplane import key_client, make_tenant

pytestmark = pytest.mark.django_db


def test_without_a_scope_rows_are_an_error_not_everything() -> None:
    with pytest.raises(scope.ScopeError):
        ApiKey.objects.all()


def test_a_scope_shows_its_own_tenant_only() -> None:
    mine, other = make_tenant(), make_tenant()
    key_client(mine)
    key_client(other)
    with scope.tenant(mine.id):
        assert {key.tenant_id for key in ApiKey.objects.all()} == {mine.id}
    with scope.all_tenants():
        assert {key.tenant_id for key in ApiKey.objects.all()} == {mine.id, other.id}


def test_a_request_forgets_its_scope() -> None:
    tenant = make_tenant()
    with scope.isolated():
        scope.enter(tenant.id)
        assert scope.active_tenant() == tenant.id
    with pytest.raises(scope.ScopeError):
        scope.active_tenant()

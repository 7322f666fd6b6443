"""With which keys of the table a call may name the revision that answers it."""

import pytest

from dispatch import routes
from ledger import generations
from tenants import service_accounts
from tenants.keys import create_api_key, mint_playground_key
from tenants.roles import Role
from tests.build.controlplane import actor_for, make_member, make_tenant, make_user, owner_of

pytestmark = pytest.mark.django_db


def picking() -> set[str]:
    return {key.id for key in routes.read_table().keys if key.picks_revision}


def test_who_may_deploy_names_revisions_and_nobody_else():
    tenant = make_tenant("acme")
    owner = actor_for(owner_of(tenant))
    playgrounds = [
        mint_playground_key(actor=actor_for(user), tenant=tenant)[0]
        for user in (make_member(tenant, Role.DEVELOPER), make_user(admin=True))
    ]
    create_api_key(actor=owner, tenant=tenant, name="app", scopes=["inference"])
    managing, _ = create_api_key(actor=owner, tenant=tenant, name="ci", scopes=["inference", "manage"])
    create_api_key(actor=owner, tenant=tenant, name="rest", scopes=["manage"])  # in no table at all
    assert picking() == {str(key.id) for key in [*playgrounds, managing]}


def test_a_key_of_a_service_account_goes_by_its_role_and_gateways_learn_of_another():
    tenant = make_tenant("acme")
    owner = actor_for(owner_of(tenant))
    account = service_accounts.create_service_account(actor=owner, tenant=tenant, name="CI", role=Role.DEVELOPER)
    key, _ = create_api_key(
        actor=owner, tenant=tenant, name="ci", scopes=["inference", "manage"], service_account=account
    )
    assert picking() == {str(key.id)}
    before = generations.current(generations.ROUTES)
    service_accounts.set_service_role(actor=owner, tenant=tenant, account=account, role=Role.VIEWER)
    assert picking() == set()
    assert generations.current(generations.ROUTES) > before

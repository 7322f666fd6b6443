"""One of everything that a tenant can own, for tests that walk over routes."""

import datetime
from typing import Any

from catalog import services as catalog
from fleet.models import Device, Gateway, Node
from kernel import actors, clock, ids, scope
from metering import prices
from rollouts.models import Experiment, Rollout, Strategy
from serving.models import Replica
from serving.services import deployments, endpoints
from tenants import invitations, service_accounts
from tenants.models import ApiKey, Member, Tenant
from tenants.roles import Role
from tests.build.catalog import checked_version, make_model
from tests.build.controlplane import key_client, make_member, make_tenant


def make_world(slug: str = "") -> tuple[Tenant, dict[str, Any]]:
    """A tenant that owns one of everything, and the values that name those things in URLs."""
    tenant = make_tenant(slug)
    actor = actors.system("tests")
    make_member(tenant)
    key_client(tenant)
    version = checked_version(tenant, model=make_model(tenant))
    alias = catalog.set_alias(actor=actor, tenant=tenant, model=version.model, name="champion", version=version)
    revision = catalog.make_revision(actor=actor, tenant=tenant, version=version, config={})
    deployment = deployments.deploy(
        actor=actor, tenant=tenant, endpoint_name=f"{tenant.slug}-chat", revision=revision, replicas=1
    )
    endpoint = deployment.endpoint
    grant = endpoints.grant(actor=actor, tenant=tenant, endpoint=endpoint, to=make_tenant().slug)
    account = service_accounts.create_service_account(actor=actor, tenant=tenant, name="ci", role=Role.DEVELOPER)
    invitation, _link = invitations.invite(
        actor=actor, tenant=tenant, email=f"{tenant.slug}@guest.example", role=Role.VIEWER
    )
    now = clock.now()
    with scope.tenant(tenant.id):
        replica = Replica.objects.filter(deployment=deployment).first() or Replica.objects.create(
            tenant=tenant, deployment=deployment, token="x" * 43, state_changed_at=now, created_at=now
        )
        member = Member.objects.order_by("-id")[0]
        key = ApiKey.objects.order_by("-id")[0]
        sides = {
            "tenant": tenant, "endpoint": endpoint, "baseline": deployment, "from_label": "v1", "to_label": "v2",
            "state_changed_at": now, "created_at": now,
        }  # fmt: skip
        rollout = Rollout.objects.create(
            **sides, strategy=Strategy.CANARY, plan={"steps": [], "extra_replicas": 0, "gap": ""},
            baseline_replicas=1, candidate_replicas=1,
        )  # fmt: skip
        experiment = Experiment.objects.create(**sides, name="split", share=50)
    node = Node.objects.create(name="n", machine_id=str(ids.new_id()), state_changed_at=now, created_at=now)
    device = Device.objects.create(
        node=node, uuid=f"GPU-{ids.new_id()}", kind="cuda", product="Test", memory_bytes=1, state_changed_at=now
    )
    gateway = Gateway.objects.create(name="g", machine_id=str(ids.new_id()), created_at=now)
    price = prices.set_price(
        actor=actor,
        endpoint=endpoint,
        price=prices.TokenPrices(prompt=1_000_000, completion=2_000_000),
        valid_from=now + datetime.timedelta(days=1),
    )
    return tenant, {
        "model": str(version.model_id),
        "number": version.number,
        "alias": alias.name,
        "endpoint": str(endpoint.id),
        "endpoint_id": endpoint.id,
        "grant_id": grant.id,
        "deployment_id": deployment.id,
        "replica_id": replica.id,
        "member_id": member.id,
        "user_id": member.user_id,
        "key_id": key.id,
        "account_id": account.id,
        "invitation_id": invitation.id,
        "node_id": node.id,
        "device_id": device.id,
        "gateway_id": gateway.id,
        "group": "research",
        "rollout_id": rollout.id,
        "experiment_id": experiment.id,
        "price_id": price.id,
    }

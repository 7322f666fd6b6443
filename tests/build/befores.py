"""What has to have happened in the world of :mod:`tests.build.world` before a changing route can be called.

Each takes tenant and values of the world and gives back the values that are other ones for this call.
"""

import datetime
import functools
from collections.abc import Callable
from typing import Any, Final

from catalog import services as catalog
from catalog.models import ModelVersion
from fleet.models import Device, Node
from kernel import actors, clock, scope
from metering import prices
from quotas.amount import Amount, Kind
from quotas.services import set_group
from rollouts import services as rollouts
from rollouts.models import Experiment, Rollout
from rollouts.planning import Wish
from serving.models import Deployment, Endpoint, Replica
from serving.services import deploy_version, endpoints, stop
from tenants.models import Invitation, Tenant
from tests.build.catalog import checked_version, make_model

Values = dict[str, Any]
Before = Callable[[Tenant, Values], Values]
ACTOR: Final = actors.system("tests")


def _archived(tenant: Tenant, values: Values) -> Values:
    version = checked_version(tenant, model=make_model(tenant, "unused"))
    catalog.archive_version(actor=ACTOR, tenant=tenant, version=version)
    return {"model": "unused", "number": version.number}


def _empty_model(tenant: Tenant, values: Values) -> Values:
    return {"model": make_model(tenant, "unused").name}


def _empty_endpoint(tenant: Tenant, values: Values) -> Values:
    return {"endpoint": endpoints.create_endpoint(actor=ACTOR, tenant=tenant, name="unused").name}


def _group(tenant: Tenant, values: Values) -> Values:
    set_group(actor=ACTOR, name=values["group"], changes={Kind.REPLICAS: Amount.of(5)})
    return {}


def _state_of(model: type[Node] | type[Device], value: str, state: str, tenant: Tenant, values: Values) -> Values:
    model._base_manager.filter(id=values[value]).update(state=state)
    return {}


def _stopped(tenant: Tenant, values: Values) -> Values:
    deployment = Deployment._base_manager.select_related("endpoint").get(id=values["deployment_id"])
    stop(actor=ACTOR, tenant=tenant, deployment=deployment)
    return {}


def _sent_long_ago(tenant: Tenant, values: Values) -> Values:
    Invitation._base_manager.filter(id=values["invitation_id"]).update(
        sent_at=clock.now() - datetime.timedelta(hours=1)
    )
    return {}


def _named(tenant: Tenant, values: Values) -> Values:
    """The endpoint by its name, as the list of prices has it."""
    return {"endpoint": Endpoint._base_manager.get(id=values["endpoint_id"]).name}


def _own_price(tenant: Tenant, values: Values) -> Values:
    endpoint = Endpoint._base_manager.get(id=values["endpoint_id"])
    prices.set_price(actor=ACTOR, endpoint=endpoint, price=prices.TokenPrices(prompt=1, completion=2))
    return _named(tenant, values)


def _second_version(tenant: Tenant, values: Values) -> Values:
    """Nothing owns the traffic of the endpoint, and there is a version to move it to."""
    with scope.tenant(tenant.id):
        Rollout.objects.all().delete()
        Experiment.objects.all().delete()
        version = ModelVersion.objects.select_related("model").get(number=values["number"], model_id=values["model"])
    checked_version(tenant, model=version.model)
    return _named(tenant, values)


def _rollout(tenant: Tenant, values: Values, *, start: bool = True, pause: bool = False) -> Values:
    found = _second_version(tenant, values)
    endpoint = Endpoint._base_manager.select_related("tenant").get(id=values["endpoint_id"])
    wish = Wish(model=values["model_name"], version=values["number"] + 1, shares=(50, 100))
    made = rollouts.create_rollout(actor=ACTOR, tenant=tenant, endpoint=endpoint, wish=wish, start=start)
    if pause:
        rollouts.pause(actor=ACTOR, tenant=tenant, rollout=made)
    return {**found, "rollout_id": made.id}


def _candidate(tenant: Tenant, values: Values) -> Values:
    """A second deployment that serves, without traffic."""
    found = _second_version(tenant, values)
    made = deploy_version(
        actor=ACTOR, tenant=tenant, endpoint_name=found["endpoint"], model=values["model_name"],
        version=values["number"] + 1, config={}, replicas=1, weight=0,
    )  # fmt: skip
    Replica._base_manager.filter(deployment=made).update(state="ready", node_id=values["node_id"])
    return {**found, "candidate": str(made.id)}


#: (route, method) → what comes before it.
BEFORE: Final[dict[tuple[str, str], Before]] = {
    ("version", "delete"): _archived,
    ("model", "delete"): _empty_model,
    ("endpoint", "delete"): _empty_endpoint,
    ("api-quota-group", "delete"): _group,
    ("node-uncordon", "post"): functools.partial(_state_of, Node, "node_id", "cordoned"),
    ("device-return", "post"): functools.partial(_state_of, Device, "device_id", "quarantined"),
    ("deployment-start", "post"): _stopped,
    ("api-invitation-resend", "post"): _sent_long_ago,
    ("api-price", "put"): _named,
    ("api-price", "delete"): _own_price,
    ("endpoint-rollouts", "post"): _second_version,
    ("rollout-start", "post"): functools.partial(_rollout, start=False),
    ("rollout-pause", "post"): _rollout,
    ("rollout-resume", "post"): functools.partial(_rollout, pause=True),
    ("rollout-promote", "post"): _rollout,
    ("rollout-roll-back", "post"): _rollout,
    ("rollout-abort", "post"): _rollout,
    ("experiments", "post"): _candidate,
}

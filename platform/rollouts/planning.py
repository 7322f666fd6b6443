"""What a rollout would do and cost, before anything is written."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kernel import scope
from kernel.actors import Actor
from kernel.texts import counted
from rollouts import sides, strategies
from rollouts.errors import NowhereToRun
from rollouts.judge.checks import Tolerance
from rollouts.models import Capacity, Strategy
from rollouts.strategies import Plan
from scheduling import fit as fitting
from serving.models import Deployment, Endpoint
from tenants import access
from tenants.models import Tenant
from tenants.roles import Permission


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wish:
    """What the person asks for. ``replicas`` 0: as many as the baseline has."""

    model: str
    version: str | int
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    replicas: int = 0
    strategy: Strategy = Strategy.CANARY
    capacity: Capacity = Capacity.SPARE
    shares: Sequence[int] = ()
    hold_seconds: int = 300
    min_requests: int = 100
    tolerance: Tolerance = dataclasses.field(default_factory=Tolerance)
    auto_rollback: bool = True
    keep_seconds: int = 900
    ready_seconds: int = 1800


@dataclasses.dataclass(frozen=True)
class Offer:
    """A way to get the capacity. ``accept`` is the sentence that must be given back to take it ("": none needed)."""

    capacity: Capacity
    possible: bool
    extra_replicas: int
    extra_bytes: int
    accept: str
    sentence: str


@dataclasses.dataclass(frozen=True)
class Preview:
    """The plan of a wish, its cost in replicas and device memory, and every other way to get the room.

    ``reason`` is the dry run's where no room at all would help; then there are no ``offers``.
    """

    baseline: Deployment
    plan: Plan
    extra_bytes: int
    fits: bool
    sentence: str
    offers: tuple[Offer, ...]
    reason: str = ""


def preview(*, actor: Actor, tenant: Tenant, endpoint: Endpoint, wish: Wish) -> Preview:
    """Say what a rollout would do and cost. Writes nothing.

    Raises:
        NoBaseline: the endpoint has no single deployment with traffic.
        errors.InvalidInput: steps, capacity or config make no sense.
    """
    access.require(actor, Permission.VIEW, tenant.id)
    with scope.tenant(tenant.id):
        baseline = sides.only_baseline(endpoint)
    plan = plan_of(endpoint, baseline, wish)
    extra = max(plan.extra_replicas, 1)
    found = fitting.fit(
        actor=actor, tenant=tenant, model=wish.model, version=wish.version, config=wish.config, replicas=extra
    )
    if found.reason == fitting.NO_ENGINE or not found.room_helps:
        return Preview(
            baseline=baseline, plan=plan, extra_bytes=0, fits=False, sentence=found.message, offers=(),
            reason=found.reason,
        )  # fmt: skip
    each = int(found.need["total_bytes"])
    offers = tuple(_offer(endpoint, baseline, wish, way, found.fits, each) for way in Capacity)
    chosen = next(offer for offer in offers if offer.capacity == wish.capacity)
    return Preview(
        baseline=baseline,
        plan=plan,
        extra_bytes=chosen.extra_bytes,
        fits=chosen.possible,
        sentence=chosen.sentence if chosen.possible else f"{chosen.sentence} {found.message}".strip(),
        offers=offers,
    )


def require_device(actor: Actor, tenant: Tenant, wish: Wish) -> None:
    """Nothing ends for a candidate that could not start.

    Raises:
        NowhereToRun: no device here is of the kind and size that it needs.
    """
    found = fitting.fit(actor=actor, tenant=tenant, model=wish.model, version=wish.version, config=wish.config)
    if not found.room_helps:
        raise NowhereToRun(
            f"What serves would end for a candidate that nothing here could run. {found.message}",
            data={"reason": found.reason},
        )


def plan_of(endpoint: Endpoint, baseline: Deployment, wish: Wish) -> Plan:
    """The steps of a wish."""
    return strategies.make(
        strategy=wish.strategy,
        capacity=wish.capacity,
        endpoint=endpoint.name,
        baseline=baseline.desired_replicas,
        candidate=wish.replicas or baseline.desired_replicas,
        shares=wish.shares,
        hold_seconds=wish.hold_seconds,
        min_requests=wish.min_requests,
    )


def _offer(endpoint: Endpoint, baseline: Deployment, wish: Wish, way: Capacity, spare: bool, each: int) -> Offer:
    if way is Capacity.SQUEEZE and baseline.desired_replicas < 2:
        return Offer(way, False, 0, 0, "", "The baseline has one replica; there is nothing to squeeze.")
    plan = plan_of(endpoint, baseline, dataclasses.replace(wish, capacity=way))
    possible = spare or plan.extra_replicas == 0
    size = plan.extra_replicas * each
    cost = f"{counted(plan.extra_replicas, 'replica')} more than now at the peak ({_gib(size)} of device memory)."
    sentence = f"Needs {cost}" if plan.extra_replicas else "Needs no more devices than now."
    if not possible:
        sentence += " That is not free now."
    return Offer(way, possible, plan.extra_replicas, size, plan.gap, sentence)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"

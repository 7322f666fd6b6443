"""Who is lost: the rule (pure) and the loop that applies it.

A node whose lease ran out is lost. But when about half of the nodes, and at least three, fall silent at once, the fault
is more likely ours: nothing is declared, and people are told. The same holds for the time after nobody listened.
"""

import dataclasses
import datetime
import enum
import uuid
from collections.abc import Sequence

from django.db import transaction

from fleet import loops, pacing
from fleet.models import Node
from fleet.states import NODE, WATCHED, NodeState
from kernel import clock, errors, machine
from kernel.actors import system
from kernel.conflicts import retry_on_conflict
from ledger import generations, hints
from ledger.record import record_move

LOOP = "fleet.expire_leases"
MASS_AT_LEAST = 3
_ACTOR = system("fleet.leases")


class Verdict(enum.StrEnum):
    """What the lease loop may do."""

    EXPIRE = "expire"
    HOLD = "hold"


@dataclasses.dataclass(frozen=True)
class Watched:
    """A node that should be answering."""

    id: uuid.UUID
    last_seen_at: datetime.datetime | None
    lease_expires_at: datetime.datetime | None


@dataclasses.dataclass(frozen=True)
class Judgement:
    """``expired`` are to be declared lost when ``verdict`` is EXPIRE; ``silent`` of ``total`` led to it."""

    verdict: Verdict
    expired: tuple[uuid.UUID, ...]
    silent: int
    total: int

    @property
    def sentence(self) -> str:
        """For people, when nothing is declared."""
        return (
            f"{self.silent} of {self.total} nodes fell silent at about the same time. That points at the control "
            "plane or the network, so nothing is declared lost and nothing is moved."
        )


def judge(nodes: Sequence[Watched], *, now: datetime.datetime, lease: datetime.timedelta) -> Judgement:
    """Decide from what was seen. A node counts as silent after half a lease, so that one outage is seen as one."""
    expired = tuple(node.id for node in nodes if node.lease_expires_at is not None and node.lease_expires_at <= now)
    silent = sum(1 for node in nodes if node.last_seen_at is not None and now - node.last_seen_at > lease / 2)
    mass = bool(expired) and silent >= MASS_AT_LEAST and silent * 2 >= len(nodes)
    return Judgement(Verdict.HOLD if mass else Verdict.EXPIRE, expired, silent, len(nodes))


def current_judgement() -> Judgement:
    """The judgement of this moment, from the rows."""
    rows = Node.objects.filter(state__in=WATCHED).values_list("id", "last_seen_at", "lease_expires_at")
    return judge([Watched(*row) for row in rows], now=clock.now(), lease=_lease())


def expire() -> int:
    """Declare lost what is lost; return how many. Renews all leases instead when nobody listened for a while."""
    with loops.one_at_a_time(LOOP) as mine:
        if not mine:
            return 0
        before = loops.note_run(LOOP)
        if before is not None and clock.now() - before > _lease() / 2:
            _renew_all()
            return 0
        judgement = current_judgement()
        if judgement.verdict is Verdict.HOLD:
            hints.push(hints.PLATFORM_TOPIC, {"what": "fleet"})
            return 0
        return sum(_lose(node_id) for node_id in judgement.expired)


@retry_on_conflict
def _renew_all() -> None:
    """Nobody listened: silence of that time proves nothing."""
    with transaction.atomic():
        rows = Node.objects.select_for_update(no_key=True).filter(state__in=WATCHED).order_by("id")
        ids = list(rows.values_list("id", flat=True))  # an UPDATE alone would lock them in any order
        Node.objects.filter(id__in=ids).update(lease_expires_at=clock.now() + _lease())


@retry_on_conflict
def _lose(node_id: uuid.UUID) -> int:
    with transaction.atomic():
        node = Node.objects.select_for_update(no_key=True).filter(id=node_id, lease_expires_at__lte=clock.now()).first()
        if node is None:
            return 0  # it reported in between
        seen = f"{node.last_seen_at:%H:%M:%S} UTC" if node.last_seen_at else "never"
        try:
            move = machine.move(
                node,
                NODE,
                NodeState.LOST,
                reason="LeaseExpired",
                message=f"The node has been silent since {seen}; its replicas get no traffic until it reports.",
                expect=WATCHED,
                returns_to=node.state,
            )
        except errors.StaleTransition:
            return 0
        record_move(move, actor=_ACTOR, tenant_id=None, subject_label=node.name)
        generations.bump(generations.ROUTES)  # the fence: from this generation on no gateway sends anything there
        hints.push_on_commit(hints.PLATFORM_TOPIC, {"what": "nodes", "node": str(node.id)})
        return 1


def _lease() -> datetime.timedelta:
    return pacing.current().lease

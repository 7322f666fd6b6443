"""The loop: replicas that wait are planned against one snapshot, then committed one by one."""

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.db import transaction
from django.db.models import Case, IntegerField, Value, When

from catalog.models import VersionFile
from fleet import loops, policy
from fleet.errors import CapacityGone
from kernel import errors, scope
from ledger import generations, hints
from scheduling import demand_log, reading
from scheduling.answers import Answer, Ask
from scheduling.commit import commit
from scheduling.giving_way import give_way
from scheduling.measured import refine
from scheduling.need import NeedUnknown, needs_of, part_of
from scheduling.plan import plan
from scheduling.spreading import spread_of, spread_out
from serving.models import Priority, Replica
from serving.peaks import Key, Measured, measured
from serving.reconcile.cycle import FAILED_ON, GAVE_WAY
from serving.states import WAITING_FOR_PLACEMENT, DeploymentState, ReplicaState

logger = logging.getLogger(__name__)

LOOP: Final = "scheduling.reconcile"
MAX_ASKS: Final = 200
MAKING_ROOM: Final = "MakingRoom"
MAKING_ROOM_TEXT: Final = "Others end to make room for it; it starts when they have."


def run() -> int:
    """Place what can be placed, and say of the rest why not; return how many were placed."""
    with loops.one_at_a_time(LOOP) as mine:
        if not mine:
            return 0
        asks = waiting()
        if not asks:
            return 0
        files = frozenset(digest for ask in asks for digest in ask.files)
        tenants = {ask.tenant_id for ask in asks if ask.tenant_id is not None}
        snapshot = reading.take(files, holders_of=tenants)
        asks = spread_out(asks, snapshot)
        demand_log.record(asks)
        return sum(_carry_out(answer) for answer in plan(snapshot, asks, demand_log.current()))


def waiting() -> list[Ask]:
    """Pending replicas of running deployments, the important first, then the oldest.

    Those whose need is unknown are told so and left out.
    """
    with scope.all_tenants():
        rows = list(
            Replica.objects.select_related("deployment__revision__version", "deployment__revision__serving_config")
            .filter(state=ReplicaState.PENDING, deployment__state=DeploymentState.RUNNING)
            .order_by(_by_priority(), "created_at", "id")[:MAX_ASKS]
        )
        files = _files_of({row.deployment.revision.version_id for row in rows})
    peaks = measured({_profile(row) for row in rows})
    policies = policy.required_by({row.tenant_id for row in rows})
    asks: list[Ask] = []
    for row in rows:
        try:
            asks.append(_ask(row, files, policies.get(row.tenant_id, ""), peaks.get(_profile(row), ())))
        except NeedUnknown as exc:
            _say(row.id, row.generation, "NeedUnknown", str(exc), {})
    return asks


def _by_priority() -> Case:
    """The important first: they must not wait behind so many others that nobody looks at them."""
    return Case(
        *(When(deployment__priority=each.value, then=Value(-each.rank)) for each in Priority),
        output_field=IntegerField(),
    )


def _profile(row: Replica) -> Key:
    return row.deployment.revision.version_id, row.deployment.revision.serving_config_id


def _ask(row: Replica, files: Mapping[uuid.UUID, frozenset[str]], least: str, peaks: Sequence[Measured]) -> Ask:
    revision = row.deployment.revision
    config = revision.serving_config
    failed_on = row.explanation.get(FAILED_ON) or row.explanation.get("node_id") if row.failures else None
    needs = needs_of(
        revision.version,
        config,
        num_threads=config.num_threads,
        sleeps=config.sleep_after_seconds > 0,
        part=part_of(revision.version, config, least),
    )
    return Ask(
        replica_id=row.id,
        generation=row.generation,
        deployment_id=row.deployment_id,
        needs=refine(needs, peaks, config.watermark_critical),
        files=files.get(revision.version_id, frozenset()),
        avoid=uuid.UUID(failed_on) if failed_on else None,
        desired=row.deployment.desired_replicas,
        tenant_id=row.tenant_id,
        priority=row.deployment.rank,
        first=not row.explanation,
        making_room=row.reason == MAKING_ROOM,
        products=tuple(config.products),
        spread=spread_of(revision.version, config, needs),
    )


def _files_of(version_ids: set[uuid.UUID]) -> dict[uuid.UUID, frozenset[str]]:
    found: dict[uuid.UUID, set[str]] = {}
    for version_id, sha256 in VersionFile.objects.filter(version_id__in=version_ids).values_list(
        "version_id", "sha256"
    ):
        found.setdefault(version_id, set()).add(sha256)
    return {version_id: frozenset(digests) for version_id, digests in found.items()}


def _carry_out(answer: Answer) -> int:
    ask = answer.ask
    if answer.relief is not None:
        give_way(answer)
        _say(ask.replica_id, ask.generation, MAKING_ROOM, f"{MAKING_ROOM_TEXT} {answer.message}", answer.explanation())
        return 0
    if answer.chosen is None:
        _say(ask.replica_id, ask.generation, answer.reason, answer.message, answer.explanation())
        return 0
    try:
        commit(answer)
    except errors.QuotaExceeded as exc:
        refused = answer.explanation() | {"node_id": None, "device_uuid": None}
        _say(ask.replica_id, ask.generation, "QuotaExceeded", exc.detail, refused)
        return 0
    except (CapacityGone, errors.StaleTransition, errors.Unavailable) as exc:
        logger.info("plan overtaken", extra={"replica": str(ask.replica_id), "why": exc.detail})
        return 0  # the next beat plans again
    return 1


def _say(replica_id: uuid.UUID, generation: int, reason: str, message: str, explanation: dict[str, Any]) -> None:
    """Write why a replica waits, when that has changed."""
    with transaction.atomic(), scope.all_tenants():
        row = Replica.objects.filter(id=replica_id, generation=generation, state=ReplicaState.PENDING).first()
        if row is None:
            return
        if told := row.explanation.get(GAVE_WAY):  # why it lost its place goes before why it has no new one
            message, explanation = f"{told} {message}", explanation | {GAVE_WAY: told}
        if (row.reason, row.message) == (reason[:64], message):
            return
        if row.failures:  # keep where it failed last
            kept = {name: row.explanation[name] for name in ("node_id", FAILED_ON) if row.explanation.get(name)}
            explanation = explanation | kept
        Replica.objects.filter(id=row.id, state=ReplicaState.PENDING).update(
            reason=reason[:64], message=message, explanation=explanation
        )
        if row.reason == WAITING_FOR_PLACEMENT:  # gateways hold requests for it no longer
            generations.bump(generations.ROUTES)
        hints.push_on_commit(hints.tenant_topic(row.tenant_id), {"what": "deployments", "id": str(row.deployment_id)})

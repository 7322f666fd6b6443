"""Reports that wait are heard together: those that are heartbeats are answered, the others are left to be read whole.

One thread with one connection takes what waits, again and again. The more wait, the less each costs, so a control plane
that is behind catches up.
"""

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from django.db import DataError, connection, transaction
from django.db.models import Exists, OuterRef, QuerySet

from dispatch import translate
from dispatch.api import wire
from dispatch.reports import UNKILLABLE
from fleet import heartbeats, machine_auth, pacing
from fleet.changes import Changes
from fleet.errors import MachineUnknown
from fleet.heartbeats import Beat
from kernel import errors, scope
from ledger import generations
from runtime.wire.errors import MalformedMessage
from runtime.wire.reports import NodeReport, ReportReply
from serving import steady
from serving.models import Member
from serving.states import ReplicaState

logger: Final = logging.getLogger(__name__)

#: Reports that are heard together. Reading so many bodies takes some tens of milliseconds.
MAX_TOGETHER: Final = 64
#: Reports that may wait for that. More are left to be read one by one, or refused.
MAX_WAITING: Final = 2048
#: A report that is longer is read alone, once its sender is known.
MAX_BYTES: Final = 256 * 1024

_thread: Final = ThreadPoolExecutor(1, thread_name_prefix="heartbeats")


class Call(NamedTuple):
    """A report as it came: its ``Authorization`` header and its body."""

    authorization: str
    body: bytes


class Together:
    """The reports that wait. Used by one event loop at a time."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Call, asyncio.Future[ReportReply | None]]] = []
        self._pump: asyncio.Task[None] | None = None

    async def answer(self, call: Call) -> ReportReply | None:
        """The reply to a report that is a heartbeat and no more; ``None`` when it has to be read whole."""
        if len(call.body) > MAX_BYTES or len(self._waiting) >= MAX_WAITING:
            return None
        answered: asyncio.Future[ReportReply | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, answered))
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        return await answered

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            taken, self._waiting = self._waiting[:MAX_TOGETHER], self._waiting[MAX_TOGETHER:]
            replies = await loop.run_in_executor(_thread, _answer, [call for call, _ in taken])
            for (_, answered), reply in zip(taken, replies, strict=True):
                if not answered.done():  # its caller may have left
                    answered.set_result(reply)


def _answer(calls: Sequence[Call]) -> Sequence[ReportReply | None]:
    """In the thread that keeps its connection, which may have died. Without a database each is left to who refuses."""
    kept = connection.connection is not None
    try:
        return answer(calls)
    except Exception:  # boundary: whatever spoils hearing them together, each is read for itself
        logger.warning("reports are read one by one", exc_info=not kept)
        connection.close()
    return _answer(calls) if kept else [None] * len(calls)


def answer(calls: Sequence[Call]) -> list[ReportReply | None]:
    """Apply the ``calls`` that are heartbeats; ``None`` for each that has to be read whole, refused or asked again.

    A node of which several wait here (its agent gave one up) has the newest applied, and none of the others.

    Raises:
        django.db.DatabaseError: nothing was applied.
    """
    heard: dict[str, _Heard] = {}
    places: dict[str, int] = {}
    for place, call in enumerate(calls):
        credential, report = _hear(call)
        if report is not None and (credential not in heard or heard[credential].beat.sequence < report.beat.sequence):
            heard[credential], places[credential] = report, place
    replies: list[ReportReply | None] = [None] * len(calls)
    if heard:
        pace = pacing.current()
        done = _note(heard, pace)
        newest = generations.current_of([generations.of_node(node_id) for node_id in done.values()])
        for credential, node_id in done.items():
            replies[places[credential]] = ReportReply(
                generation=newest.get(generations.of_node(node_id), 0),
                interval_seconds=pace.interval_seconds,
                lease_seconds=pace.lease_seconds,
            )
    return replies


class _Heard(NamedTuple):
    beat: Beat
    replicas: steady.Seen


def _hear(call: Call) -> tuple[str, _Heard | None]:
    """The digest of the credential, and what its node says; ``None`` for what is no report, or surely has news."""
    try:
        credential = machine_auth.digest_in(call.authorization)
        report = wire.decode(call.body, NodeReport)
    except (MachineUnknown, MalformedMessage, errors.InvalidInput):
        return "", None
    seen = translate.observations(report)
    if len(seen) != len(report.replicas) or any(each.reason == UNKILLABLE for each in seen):
        return credential, None
    return credential, _Heard(translate.beat(report), steady.Seen(seen, report.applied_generation))


def _note(heard: Mapping[str, _Heard], pace: pacing.Pace) -> dict[str, uuid.UUID]:
    """The nodes of those that are done with; a report with a value that no column takes spoils no other."""
    try:
        return _note_together(heard, pace)
    except DataError:
        if len(heard) == 1:
            logger.warning("report cannot be stored", exc_info=True)
            return {}
    names, half = list(heard), len(heard) // 2
    return {
        credential: node_id
        for part in (names[:half], names[half:])
        for credential, node_id in _note({name: heard[name] for name in part}, pace).items()
    }


def _note_together(heard: Mapping[str, _Heard], pace: pacing.Pace) -> dict[str, uuid.UUID]:
    """The nodes and their replicas in one transaction, as every report is."""
    changes = Changes()

    def news(nodes: Mapping[str, uuid.UUID]) -> set[str]:
        named = steady.unsteady({node_id: heard[name].replicas for name, node_id in nodes.items()}, changes)
        return {name for name, node_id in nodes.items() if node_id in named}

    beats = {credential: each.beat for credential, each in heard.items()}
    with transaction.atomic(), scope.all_tenants():
        done = heartbeats.note(beats, pace, unless=Exists(_beside()), news=news)
        changes.announce()
    return done


def _beside() -> "QuerySet[Member]":
    """What a node runs of replicas of several nodes: what that means, the others' reports decide, too."""
    return Member.objects.filter(node=OuterRef("pk")).exclude(replica__state=ReplicaState.STOPPED)

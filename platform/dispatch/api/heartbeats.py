"""Reports that wait are heard together: those that are heartbeats are answered, the others are left to be read whole.

One thread with one connection takes what waits, again and again. The more wait, the less each costs, so a control plane
that is behind catches up.
"""

import asyncio
import logging
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from django.db import DatabaseError, DataError, connection
from django.db.models import Exists, OuterRef, Q

from dispatch import translate
from dispatch.api import wire
from fleet import heartbeats, machine_auth, pacing
from fleet.errors import MachineUnknown
from fleet.heartbeats import Beat
from kernel import errors, scope
from ledger import generations
from runtime.wire.errors import MalformedMessage
from runtime.wire.reports import NodeReport, ReportReply
from serving.models import Member, Replica
from serving.states import ReplicaState

logger: Final = logging.getLogger(__name__)

#: Reports that are heard together. Reading so many bodies takes some tens of milliseconds.
MAX_TOGETHER: Final = 64
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
        if len(call.body) > MAX_BYTES:
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
            replies: Sequence[ReportReply | None] = [None] * len(taken)
            try:
                replies = await loop.run_in_executor(_thread, _answer, [call for call, _ in taken])
            finally:
                for (_, answered), reply in zip(taken, replies, strict=True):
                    if not answered.done():  # its caller may have left
                        answered.set_result(reply)


def _answer(calls: Sequence[Call]) -> Sequence[ReportReply | None]:
    """In the thread that keeps its connection, which may have died. Without a database each is left to who refuses."""
    kept = connection.connection is not None
    try:
        return answer(calls)
    except DatabaseError:
        logger.warning("reports are read one by one", exc_info=not kept)
        connection.close()
    return _answer(calls) if kept else [None] * len(calls)


def answer(calls: Sequence[Call]) -> list[ReportReply | None]:
    """Apply the ``calls`` that are heartbeats; ``None`` for each that has to be read whole, refused or asked again.

    A node of which several wait here (its agent gave one up) has the newest applied, and none of the others.

    Raises:
        django.db.DatabaseError: nothing was applied.
    """
    beats: dict[str, Beat] = {}
    places: dict[str, int] = {}
    for place, call in enumerate(calls):
        heard = _hear(call)
        if heard is None:
            continue
        credential, beat = heard
        if credential not in beats or beats[credential].sequence < beat.sequence:
            beats[credential], places[credential] = beat, place
    replies: list[ReportReply | None] = [None] * len(calls)
    if beats:
        pace = pacing.current()
        done = _note(beats, pace)
        newest = generations.current_of([generations.of_node(node_id) for node_id in done.values()])
        for credential, node_id in done.items():
            replies[places[credential]] = ReportReply(
                generation=newest.get(generations.of_node(node_id), 0),
                interval_seconds=pace.interval_seconds,
                lease_seconds=pace.lease_seconds,
            )
    return replies


def _hear(call: Call) -> tuple[str, Beat] | None:
    """The digest of the credential, and the heartbeat; ``None`` for what is no report of a node without replicas."""
    try:
        credential = machine_auth.digest_in(call.authorization)
        report = wire.decode(call.body, NodeReport)
    except (MachineUnknown, MalformedMessage, errors.InvalidInput):
        return None
    return None if report.replicas else (credential, translate.beat(report))


def _note(beats: dict[str, Beat], pace: pacing.Pace) -> dict[str, uuid.UUID]:
    """As :func:`fleet.heartbeats.note`; a report with a value that no column takes spoils no other."""
    try:
        with scope.all_tenants():
            return heartbeats.note(beats, pace, unless=_has_replicas())
    except DataError:
        if len(beats) == 1:
            logger.warning("report cannot be stored", exc_info=True)
            return {}
    names, half = list(beats), len(beats) // 2
    return {
        credential: node_id
        for part in (names[:half], names[half:])
        for credential, node_id in _note({name: beats[name] for name in part}, pace).items()
    }


def _has_replicas() -> Q:
    """Of a node: it should run something, or has not yet proved that something ended."""
    leading = Replica.objects.filter(node=OuterRef("pk")).exclude(state=ReplicaState.STOPPED)
    beside = Member.objects.filter(node=OuterRef("pk")).exclude(replica__state=ReplicaState.STOPPED)
    return Q(Exists(leading)) | Q(Exists(beside))

"""What requests came to whose answer was not seen to its end: the engines' own count is the truth.

An engine remembers what it computed for requests that have ended, so it can be asked after a client has left, after a
connection broke, and by the process that follows a gateway that was killed. What nobody can tell any more (the engine
is gone, and its count with it) is booked as what was last seen of it.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import aiohttp
import msgspec

from runtime.base import logs
from runtime.base.clock import Clock
from runtime.gateway.identity import upstream_id_of
from runtime.gateway.journal import Journal
from runtime.gateway.upstream import BROKEN, UNSENT, Engines
from runtime.wire.inference import Usage
from runtime.wire.routes import ReplicaRoute
from runtime.wire.usage import UsageRecord

log = logs.get(__name__)

_SURE_SECONDS: Final = 1.0  # an engine that does not know a request by then has never read it, or has forgotten it
_MOST_AT_ONCE: Final = 32
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0


class Unsettled(Exception):
    """This process ends before the engine has told: the next one finds the request in the journal and asks again."""


class Finals:
    """Asks engines, for at most ``seconds`` each. ``route`` finds a replica in the newest table."""

    def __init__(
        self, engines: Engines, clock: Clock, route: Callable[[str], ReplicaRoute | None], *, seconds: float
    ) -> None:
        self._engines = engines
        self._clock = clock
        self._route = route
        self._seconds = seconds
        self._at_once = asyncio.Semaphore(_MOST_AT_ONCE)
        self._closing = asyncio.Event()

    def close(self) -> None:
        """Ask once and no more: whoever would ask again gets :class:`Unsettled`."""
        self._closing.set()

    async def ask(self, replica_id: str, request_id: str, known: ReplicaRoute | None = None) -> Usage | None:
        """End a request on its engine and return what it came to; ``None`` when nobody can tell.

        ``known`` is where the replica was when it was asked, for one that has left the table since.

        Raises:
            Unsettled: the process is ending.
        """
        since, pause = self._clock.monotonic(), _FIRST_PAUSE
        while (route := self._route(replica_id) or known) is not None:
            try:
                async with self._at_once:
                    usage = await self._engines.cancel(route, request_id)
            except BROKEN as exc:
                if isinstance(exc, UNSENT) and _refused(exc):
                    return None  # its process is gone
                left, why = self._seconds, str(exc) or type(exc).__name__
            else:
                if usage is not None:
                    return usage
                left, why = _SURE_SECONDS, "it does not know the request"
            if self._clock.monotonic() - since >= left:
                log.info("final usage not told", replica=replica_id, request=request_id, reason=why)
                return None
            await self._pause(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
        return None

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return
        raise Unsettled


async def settle_cut(finals: Finals, journal: Journal) -> None:
    """Book what an earlier process of this gateway had under way when it was killed, as its engines counted it."""

    async def one(record: UsageRecord) -> None:
        try:
            usage = await finals.ask(record.replica_id, upstream_id_of(record.id, record.request_id))
        except Unsettled:
            return
        journal.append(counted(record, usage))

    cut, journal.cut = journal.cut, []
    if cut:
        log.warning("requests were cut by the end of an earlier process; asking engines", requests=len(cut))
    await asyncio.gather(*(one(record) for record in cut))


def counted(record: UsageRecord, usage: Usage | None) -> UsageRecord:
    """``record`` with the tokens of ``usage``, where there is any."""
    if usage is None:
        return record
    return msgspec.structs.replace(
        record,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
    )


def _refused(exc: BaseException) -> bool:
    error = exc.os_error if isinstance(exc, aiohttp.ClientConnectorError) else exc
    return isinstance(error, ConnectionRefusedError)

"""Shared counters in Valkey or Redis: operations go out in batches, one script call at a time.

Whatever queues up while a call is on its way goes along with the next one, so a busy gateway pays for one call where it
serves many requests. A call has a short timeout; when one fails everybody waiting is told at once, and nobody waits
again until the counters answer.
"""

import asyncio
import math
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import NoScriptError, RedisError

from runtime.base import logs
from runtime.gateway.limits.backlog import Backlog, Op
from runtime.gateway.loops import wait_for

log = logs.get(__name__)

_SCRIPT: Final = (Path(__file__).parent / "counters.lua").read_text("utf-8")
_PREFIX: Final = b"{millpond:limits}:"  # braces: one hash slot, should the server be part of a cluster
_RETRY_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 1.0  # how long a silent failure may go unnoticed
_SETTLE_SECONDS: Final = 0.002  # what is only given back waits so long for a reserve to go along with
_MAX_DOUBTFUL: Final = 1000
_MAX_RETIRED: Final = 100
_BROKEN: Final = (RedisError, OSError, TimeoutError, asyncio.TimeoutError, msgspec.MsgspecError)


class CountersDown(Exception):
    """The shared counters gave no answer in time."""


class Reserved(NamedTuple):
    """Answer to a reserve: the refusing limit or ``False``, the standings, and the bucket that it was counted in."""

    refused: Any
    standings: list[list[int]]
    bucket: int


class _Pending(NamedTuple):
    op: Op
    answer: asyncio.Future[Reserved]
    undo: Callable[[int], Op]


class Counters:
    """One connection. ``holders`` are names of earlier processes of this gateway: what they hold is given back."""

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float,
        lease_seconds: float,
        holders: list[str],
        adopt: Callable[[str], list[Op]],
        changed: Callable[[], None],
    ) -> None:
        self._pool = ConnectionPool.from_url(url, socket_timeout=None, socket_connect_timeout=timeout_seconds)
        self._timeout = timeout_seconds
        self._lease_seconds = lease_seconds
        self._adopt = adopt
        self._changed = changed
        self._connection: AbstractConnection | None = None
        self._digest = b""
        self._wake = asyncio.Event()
        self._settling: asyncio.TimerHandle | None = None
        self._waiting: list[_Pending] = []
        self._applies: list[Op] = []
        self._backlog = Backlog()
        self._doubtful: list[list[Any]] = []
        self._retired = list(holders)
        self._sequence = 0
        self.holder = ""
        self.up = False
        self.gateways = 0  # alive at the last answer
        self.clock_bucket = 0  # the counters' own time at the last answer: bucket, and milliseconds into it
        self.clock_age_ms = 0

    # --- for the limiter ---

    async def reserve(self, op: Op, undo: Callable[[int], Op]) -> Reserved:
        """Send ``op`` with the next batch. ``undo`` makes the operation that takes it back, from its bucket.

        Raises:
            CountersDown: no answer; whatever became of it is given back with the old holder.
        """
        if not self.up:
            raise CountersDown
        answer: asyncio.Future[Reserved] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Pending(op, answer, undo))
        self._wake.set()
        return await answer

    def apply(self, op: Op) -> None:
        """Send ``op`` with the next batch, or keep it until the counters are back."""
        if not self.up:
            self._backlog.add(op)
            return
        self._applies.append(op)
        if self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(_SETTLE_SECONDS, self._wake.set)

    async def start(self) -> None:
        """One try to connect before the first request is served."""
        try:
            await self._connect()
        except _BROKEN as exc:
            self._fail(exc)

    async def keep(self) -> None:
        """Run until cancelled: send what queues up, keep the lease, come back after failures."""
        while True:
            try:
                if not self.up:
                    await self._connect()
                await wait_for(self._wake, min(_LOOK_SECONDS, self._lease_seconds / 3))
                await self._exchange()
            except _BROKEN as exc:
                self._fail(exc)
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception as exc:
                # Boundary: a defect is the supervisor's to record; until it starts this again nobody may wait for it.
                self._fail(exc)
                raise

    async def close(self) -> None:
        """Send what is left and give up the lease."""
        if self.up:
            try:
                await self._exchange()
                await self._call([self.holder, self._next(), 1, True, [self.holder], [], []])
            except _BROKEN as exc:
                self._fail(exc)
        await self._hang_up()

    # --- talking ---

    async def _connect(self) -> None:
        await self._hang_up()
        self._connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        async with asyncio.timeout(self._timeout * 4):
            await self._connection.connect()
            await self._connection.send_command("SCRIPT", "LOAD", _SCRIPT)
            loaded = await self._connection.read_response(disable_decoding=True)
        self._digest = loaded if isinstance(loaded, bytes) else str(loaded).encode()
        await self._introduce()
        log.info("shared counters connected", gateways=self.gateways)

    async def _introduce(self) -> None:
        """Come under a new name: give back what the old one held, say what runs, and tell what happened meanwhile."""
        if self.holder:
            self._retired = [*self._retired[-_MAX_RETIRED:], self.holder]  # the lease ends whoever is left out
        self.holder, self._sequence = secrets.token_hex(8), 0
        self._changed()
        late = [*self._backlog.take(), *self._applies]
        self._applies = []
        running = self._adopt(self.holder)
        sequence = self._next()
        try:
            answer = await self._call([
                self.holder, sequence, self._lease_ms, True, self._retired, self._doubtful, late + running
            ])  # fmt: skip
        except _BROKEN:
            if late:
                self._doubt(sequence, late)
            raise
        self._doubtful, self._retired = [], []
        self._hear(answer)
        self.up = True
        # What was admitted while this was on its way.
        late = self._backlog.take()
        self._applies = [*self._applies, *late, *self._adopt(self.holder)]
        if self._applies:
            self._wake.set()

    async def _exchange(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        waiting, self._waiting = self._waiting, []
        applies, self._applies = self._applies, []
        sequence = self._next()
        reserves = [pending.op for pending in waiting]
        ops = [*applies, *reserves]
        try:
            answer = await self._call([self.holder, sequence, self._lease_ms, False, [], [], ops])
            if not answer[0]:
                # The lease was lost, and with it what this gateway held: nothing of the batch was done.
                log.warning("lease on shared counters was lost; reserving anew", holder=self.holder)
                self._applies = applies + self._applies
                await self._introduce()
                applies, sequence = [], self._next()
                answer = await self._call([self.holder, sequence, self._lease_ms, False, [], [], reserves])
                if not answer[0]:
                    raise RedisError("the lease was lost twice in a row")
            if len(answer[4]) != len(waiting):
                raise RedisError(f"{len(waiting)} reserves were sent, {len(answer[4])} answered")
        except BaseException:
            if applies or reserves:
                self._doubt(sequence, applies, reserves)
            _tell(waiting, CountersDown())
            raise
        self._hear(answer)
        for pending, (refused, standings) in zip(waiting, answer[4], strict=True):
            if not pending.answer.done():
                pending.answer.set_result(Reserved(refused, standings, self.clock_bucket))
            elif not refused:
                self.apply(pending.undo(self.clock_bucket))  # nobody waits for it any more

    async def _call(self, message: list[Any]) -> list[Any]:
        payload = msgspec.msgpack.encode(message)
        async with asyncio.timeout(self._timeout):
            try:
                raw = await self._evaluate(b"EVALSHA", self._digest, payload)
            except NoScriptError:
                raw = await self._evaluate(b"EVAL", _SCRIPT.encode(), payload)
        answer: list[Any] = msgspec.msgpack.decode(raw)
        return answer

    async def _evaluate(self, command: bytes, script: bytes, payload: bytes) -> bytes:
        connection = self._connection
        if connection is None:
            raise RedisError("not connected")
        parts = (command, script, b"1", _PREFIX, payload)
        packed = b"*5\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
        await connection.send_packed_command(packed, check_health=False)
        raw: bytes = await connection.read_response(disable_decoding=True, timeout=math.inf)
        return raw

    def _hear(self, answer: list[Any]) -> None:
        _, self.clock_bucket, self.clock_age_ms, self.gateways, _ = answer
        self._changed()

    def _fail(self, exc: BaseException) -> None:
        if self.up or not self.holder:
            log.warning("shared counters unreachable; limits go by this gateway's share", error=repr(exc)[:300])
        self.up = False
        waiting, self._waiting = self._waiting, []
        _tell(waiting, CountersDown())
        self._backlog.put_back(self._applies)
        self._applies = []
        self._changed()

    def _doubt(self, sequence: int, applies: list[Op], reserves: list[Op] | None = None) -> None:
        """A call may have arrived or not: say it again later, and take back what its reserves took for nobody."""
        taken = [[tokens, _windowed(subjects)] for _, tokens, subjects in reserves or []]
        self._doubtful.append([self.holder, sequence, applies, taken])
        if len(self._doubtful) > _MAX_DOUBTFUL:
            log.error("operations on shared counters given up", operations=len(self._doubtful.pop(0)[2]))

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    @property
    def _lease_ms(self) -> int:
        return round(self._lease_seconds * 1000)

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)


def _windowed(subjects: list[Any]) -> list[str]:
    """Whose minutes a reserve counts in."""
    return [ident for ident, requests, tokens, *_ in subjects if requests >= 0 or tokens >= 0]


def _tell(waiting: list[_Pending], error: Exception) -> None:
    for pending in waiting:
        if not pending.answer.done():
            pending.answer.set_exception(error)

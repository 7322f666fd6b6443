"""The way of one request to one engine: take a slot, open the connection, cancel there, let go."""

import asyncio
from collections.abc import Callable
from typing import Final

from runtime.base import logs
from runtime.gateway import credits
from runtime.gateway.asks import BROKEN, NOTHING, UNREACHED, Ask, Outcome, Slot
from runtime.gateway.balance import Choice
from runtime.gateway.core import Core
from runtime.gateway.engine_http import Call
from runtime.gateway.pool import unreachable
from runtime.gateway.refusals import Reason, Refusal
from runtime.gateway.upstream import BROKEN as BROKE
from runtime.gateway.upstream import DROPPED, UNSENT, read_all
from runtime.wire import inference
from runtime.wire.inference import Usage
from runtime.wire.routes import ReplicaRoute

log = logs.get(__name__)

BUSY: Final = frozenset({429, 503})
_STOP_PAUSES: Final = (0.05, 0.2, 0.5)  # seconds
_LEAST_DEADLINE_MS: Final = 1


class Lane:
    """Use once. ``choice`` is the replica tried last, ``response`` what it answered, ``sent`` when (monotonic).

    ``on_send`` is told of each replica before it is sent anything. ``broke``: the one tried last broke off, so what it
    computed is not known; ``lost`` holds those before it that did.
    """

    def __init__(self, core: Core, ask: Ask, request_id: str, on_send: Callable[[Choice], None]) -> None:
        self._core = core
        self._ask = ask
        self._request_id = request_id
        self._on_send = on_send
        self._opening: Call | None = None
        self._slot: Slot | None = None
        self._dropped = False
        self.sent = 0.0
        self.choice: Choice | None = None
        self.response: Call | None = None
        self.broke = False
        self.lost: list[ReplicaRoute] = []

    @property
    def sent_any(self) -> bool:
        """True when the replica tried last may have been sent the request."""
        return self._opening is not None

    @property
    def replica_id(self) -> str:
        """The replica tried last, or ""."""
        return self.choice.replica.replica_id if self.choice else ""

    @property
    def held(self) -> float:
        """Seconds for which the request was held back here."""
        return self._ask.held

    async def open(self, path: str, headers: dict[str, str], body: bytes) -> Call:
        """Send to one replica after another, before a first byte has come back and within the retry budget.

        A replica that drops the connection unanswered is replaced once: a request that kills engines kills no third.

        Raises:
            Refusal: 503 when none is ready or reachable, 502 when one failed after it had been sent the request, 504
                when the deadline passed first.
        """
        problem: Refusal | None = None
        for attempt in range(1, self._core.settings.max_attempts + 1):
            try:
                slot = await self._core.traffic.place(self._ask)
            except Refusal as refusal:
                if self.response is not None:
                    return self.response
                raise problem or refusal from None
            self._take(slot)
            try:
                self.response = await self._send(slot.choice, path, headers, body)
            except BROKE as exc:
                problem = self._failed(exc)
            else:
                self._hear(slot, self.response)
                if self.response.status not in BUSY:
                    return self.response
            if attempt == self._core.settings.max_attempts or not self._core.traffic.may_retry(slot):
                break
        if self.response is not None:
            return self.response
        raise problem or unreachable()

    def _failed(self, exc: BaseException) -> Refusal:
        """The engine was not reached, or broke off: what to say if no other can be tried.

        Raises:
            Refusal: no other may be tried.
        """
        unsent = isinstance(exc, UNSENT)
        log.warning("replica not reached" if unsent else "engine failed", replica=self.replica_id, error=str(exc))
        self.finish(UNREACHED if unsent else BROKEN)
        if unsent:
            return unreachable()
        self.broke = True
        problem = failed("The model's engine failed before it answered. Please try again.")
        if self._dropped or not isinstance(exc, DROPPED):
            raise problem from exc
        self._dropped = True
        return problem

    def _hear(self, slot: Slot, response: Call) -> None:
        told = credits.of_answer(response.headers)
        if told is not None:
            self._core.traffic.hear(slot.replica, told)

    async def stop(self) -> tuple[Usage | None, bytes | None]:
        """End the request on its engine; return the usage it tells, or else the rest of an answer that was complete.

        Asked more than once, because an engine does not know a request before it has read it, nor after it has ended.
        """
        if self.choice is None or self._opening is None:
            return None, None
        rest = asyncio.create_task(self._rest(self._opening))
        try:
            for pause in _STOP_PAUSES:
                try:
                    usage = await self._core.engines.cancel(self.choice.replica, self._request_id)
                except BROKE as exc:
                    log.warning("cancel failed", replica=self.replica_id, request=self._request_id, error=str(exc))
                    return None, None
                if usage is not None:
                    return usage, None
                done, _ = await asyncio.wait({rest}, timeout=pause)
                if done:
                    return None, rest.result()
            return None, None
        finally:
            rest.cancel()

    async def _rest(self, opening: Call) -> bytes | None:
        try:
            await opening.head()
            self.response = opening
            return await read_all(self.response, self._core.settings.max_answer_bytes)
        except BROKE:
            return None

    def finish(self, outcome: Outcome) -> None:
        """Give the slot back, saying what its use has shown. Only the first time counts."""
        slot, self._slot = self._slot, None
        if slot is not None:
            self._core.traffic.release(slot, outcome)

    def close(self) -> None:
        """Let go of connection and replica, whatever was going on."""
        if self._opening is not None:
            self._opening.close()
        self.finish(NOTHING)

    async def _send(self, choice: Choice, path: str, headers: dict[str, str], body: bytes) -> Call:
        left = self._ask.until - self._core.clock.monotonic()
        told = {**headers, inference.HEADER_DEADLINE_MS: str(max(_LEAST_DEADLINE_MS, round(left * 1000)))}
        # A client who leaves while this waits does not cut the connection before the engine was asked what it computed.
        self._on_send(choice)
        self._opening = self._core.engines.open(choice.replica, path, told, body)
        await self._opening.head()
        return self._opening

    def _take(self, slot: Slot) -> None:
        if self._opening is not None:
            self._opening.close()
        if self.broke and self.choice is not None:
            self.lost.append(self.choice.replica)
        self.broke = False
        self.response = None
        self.finish(NOTHING)
        self._slot = slot
        self._opening = None
        self.choice = slot.choice
        self.sent = self._core.clock.monotonic()
        self._ask.tried.add(slot.choice.replica.replica_id)


def failed(message: str) -> Refusal:
    """An engine did not do its part."""
    return Refusal(Reason.UPSTREAM_FAILED, 502, message, code="engine_error")

"""The way of one request to one engine: pick a replica, open the connection, cancel there, let go."""

import asyncio
from typing import Final

import aiohttp

from runtime.base import logs
from runtime.gateway import balance
from runtime.gateway.core import Core
from runtime.gateway.refusals import Reason, Refusal
from runtime.gateway.upstream import BROKEN, UNSENT, read_all
from runtime.wire.inference import Usage
from runtime.wire.routes import EndpointEntry, ReplicaRoute

log = logs.get(__name__)

BUSY: Final = frozenset({429, 503})
_STOP_PAUSES: Final = (0.05, 0.2, 0.5, 1.0)  # seconds


class Lane:
    """Use once. ``choice`` is the replica tried last, ``response`` what it answered."""

    def __init__(self, core: Core, endpoint: EndpointEntry, request_id: str) -> None:
        self._core = core
        self._endpoint = endpoint
        self._request_id = request_id
        self._opening: asyncio.Task[aiohttp.ClientResponse] | None = None
        self._draw = core.draws.variant()  # one draw: another try stays with the variant while that has replicas
        self._counted = ""
        self._closed = False
        self.choice: balance.Choice | None = None
        self.response: aiohttp.ClientResponse | None = None

    @property
    def replica_id(self) -> str:
        """The replica tried last, or ""."""
        return self.choice.replica.replica_id if self.choice else ""

    async def open(self, path: str, headers: dict[str, str], body: bytes) -> aiohttp.ClientResponse:
        """Send to one replica after another, but only as long as none can have begun to work on it.

        Raises:
            Refusal: 503 when none is ready or reachable, 502 when one failed after it had been sent the request.
        """
        tried: set[str] = set()
        for _ in range(self._core.settings.max_attempts):
            choice = self._choose(tried)
            if choice is None:
                break
            if tried:
                self._core.metrics.retried()
            tried.add(choice.replica.replica_id)
            self._take(choice)
            try:
                self.response = await self._send(choice.replica, path, headers, body)
            except UNSENT as exc:
                log.warning("replica not reached", replica=self.replica_id, error=str(exc))
                continue
            except BROKEN as exc:
                log.warning("engine failed", replica=self.replica_id, error=str(exc))
                raise failed("The model's engine failed before it answered. Please try again.") from exc
            if self.response.status not in BUSY:
                break
        if self.response is not None:
            return self.response
        raise self._unreachable() if tried else self._not_ready()

    async def stop(self) -> tuple[Usage | None, bytes | None]:
        """End the request on its engine; return the usage it tells, or else the rest of an answer that was complete.

        Asked more than once, because an engine does not know a request before it has read it, nor after it has ended.
        """
        if self.choice is None or self._opening is None:
            return None, None
        rest = asyncio.create_task(self._rest(self._opening))
        try:
            for pause in _STOP_PAUSES:
                usage = await self._core.engines.cancel(self.choice.replica, self._request_id)
                if usage is not None:
                    return usage, None
                done, _ = await asyncio.wait({rest}, timeout=pause)
                if done:
                    return None, rest.result()
            return None, None
        finally:
            rest.cancel()

    async def _rest(self, opening: asyncio.Task[aiohttp.ClientResponse]) -> bytes | None:
        try:
            self.response = self.response or await opening
            return await read_all(self.response, self._core.settings.max_answer_bytes)
        except BROKEN:
            return None

    def close(self) -> None:
        """Let go of connection and replica, whatever was going on."""
        self._closed = True
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
        if self.response is not None:
            self.response.close()
        self._give_back()

    def _choose(self, tried: set[str]) -> balance.Choice | None:
        return balance.choose(
            self._endpoint,
            draw=self._draw,
            tie=self._core.draws.turn(),
            outstanding=self._core.engines.outstanding,
            excluded=tried,
        )

    async def _send(
        self, replica: ReplicaRoute, path: str, headers: dict[str, str], body: bytes
    ) -> aiohttp.ClientResponse:
        # In a task of its own, so that a client who leaves now does not cut the connection before the engine was asked
        # what it has computed.
        self._opening = asyncio.create_task(self._core.engines.open(replica, path, headers, body))
        self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _opened(self, opening: asyncio.Task[aiohttp.ClientResponse]) -> None:
        if opening.cancelled() or opening.exception() is not None:
            return
        if self._closed:
            opening.result().close()

    def _take(self, choice: balance.Choice) -> None:
        if self.response is not None:
            self.response.close()
            self.response = None
        self._give_back()
        self.choice = choice
        self._counted = choice.replica.replica_id
        self._core.engines.take(self._counted)

    def _give_back(self) -> None:
        counted, self._counted = self._counted, ""
        if counted:
            self._core.engines.give_back(counted)

    def _not_ready(self) -> Refusal:
        state = self._endpoint.state or "No replica of this model is ready."
        return Refusal(Reason.NOT_READY, 503, state, code="model_not_ready", param="model", retry_after=5)

    def _unreachable(self) -> Refusal:
        return Refusal(
            Reason.UPSTREAM_UNREACHABLE,
            503,
            "No replica of this model could be reached. Please try again.",
            retry_after=2,
        )


def failed(message: str) -> Refusal:
    """An engine did not do its part."""
    return Refusal(Reason.UPSTREAM_FAILED, 502, message, code="engine_error")

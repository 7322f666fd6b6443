"""Talking to one engine: its state, a drain, one real inference. Never raises: a probe's answer is a fact."""

import asyncio
from typing import Final

import aiohttp
import msgspec

from runtime.wire import codec
from runtime.wire.errors import MalformedMessage
from runtime.wire.inference import (
    HEADER_PREFIX_SALT,
    HEADER_REQUEST_ID,
    HEADER_TENANT,
    PATH_DRAIN,
    PATH_STATE,
    PROBE_TENANT,
    EngineState,
)

STATE_SECONDS: Final = 2.0
DRAIN_SECONDS: Final = 5.0
VERIFY_SECONDS: Final = 120.0
MAX_ANSWER_BYTES: Final = 1024 * 1024
_FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, MalformedMessage, msgspec.MsgspecError)


class Completion(msgspec.Struct, frozen=True):
    """The part of OpenAI's completion that proves an inference."""

    class Choice(msgspec.Struct, frozen=True):
        """One answer."""

        text: str
        finish_reason: str | None

    class Usage(msgspec.Struct, frozen=True):
        """Token counts."""

        completion_tokens: int

    choices: list[Choice]
    usage: Usage


class Prober:
    """Calls engines over one shared client session."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def state(self, url: str, token: str, *, replica_id: str, generation: int) -> EngineState | str:
        """Ask for the state; a string says why there is none (an answer of another replica or generation is none)."""
        try:
            status, body = await self._call("GET", url + PATH_STATE, token, STATE_SECONDS)
            if status != 200:
                return f"its state answers {status}"
            state = codec.decode(body, EngineState)
        except _FAILURES as exc:
            return f"it does not answer: {_text(exc)}"
        if (state.replica_id, state.generation) != (replica_id, generation):
            return f"replica {state.replica_id} of generation {state.generation} answers in its place"
        return state

    async def drain(self, url: str, token: str) -> str:
        """Ask the engine to drain; "" when it accepted, else why not."""
        try:
            status, _ = await self._call("POST", url + PATH_DRAIN, token, DRAIN_SECONDS)
        except _FAILURES as exc:
            return _text(exc)
        return "" if status < 300 else f"it answers {status}"

    async def verify(self, url: str, token: str, *, model: str, request_id: str) -> str:
        """Have one token generated; "" when it came, else why not (one sentence)."""
        body = {"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        headers = {
            HEADER_REQUEST_ID: request_id,
            HEADER_TENANT: PROBE_TENANT,
            HEADER_PREFIX_SALT: PROBE_TENANT,
        }
        try:
            status, answer = await self._call("POST", url + "/v1/completions", token, VERIFY_SECONDS, body, headers)
            if status != 200:
                return f"a trial inference answers {status}: {answer[:300].decode(errors='replace')}"
            completion = codec.decode(answer, Completion)
        except _FAILURES as exc:
            return f"a trial inference failed: {_text(exc)}"
        # A model may end at once: then its end token is what was computed.
        if not completion.choices or (
            completion.usage.completion_tokens < 1 and not completion.choices[0].finish_reason
        ):
            return "a trial inference gave no token"
        return ""

    async def _call(
        self,
        method: str,
        url: str,
        token: str,
        seconds: float,
        body: object = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        sent = {"authorization": f"Bearer {token}", **(headers or {})}
        if body is not None:
            sent["content-type"] = "application/json"
        async with asyncio.timeout(seconds):
            async with self._session.request(
                method,
                url,
                headers=sent,
                data=None if body is None else msgspec.json.encode(body),
                allow_redirects=False,
            ) as response:
                return response.status, await response.content.read(MAX_ANSWER_BYTES)


def _text(exc: BaseException) -> str:
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    return str(exc) or type(exc).__name__

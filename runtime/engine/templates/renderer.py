"""The engine's side of chat templates: one child process, a time limit, and a new child when one was killed."""

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from runtime.base import logs
from runtime.engine import errors

_log = logs.get(__name__)

_WORKER: Final = Path(__file__).with_name("worker.py")
_START_SECONDS: Final = 20.0
# Templates ask whether these are none; an undefined name is not.
_ABSENT: Final = {"tools": None, "documents": None}
_LINE_LIMIT: Final = 64 << 20


class TemplateFailed(errors.InvalidRequest):
    """The model's chat template did not accept the messages, or was stopped."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="messages", code="chat_template_failed")


class TemplateRenderer:
    """Renders one template. ``specials`` (``bos_token`` and so on) are given to it as variables."""

    def __init__(
        self,
        template: str,
        specials: dict[str, str],
        *,
        render_seconds: float = 2.0,
        memory_bytes: int = 512 << 20,
        text_limit: int = 4 << 20,
    ) -> None:
        self.template = template
        self._specials = specials
        self._render_seconds = render_seconds
        self._memory_bytes = memory_bytes
        self._text_limit = text_limit
        self._lock = asyncio.Lock()
        self._child: asyncio.subprocess.Process | None = None
        self.restarts = 0

    async def render(self, variables: dict[str, Any]) -> str:
        """Return the prompt for ``variables`` (``messages``, ``add_generation_prompt``, ...).

        Raises:
            TemplateFailed: the template refused, failed, or was killed for time or memory.
        """
        async with self._lock:
            child = self._child or await self._start()
            reply = await self._ask(child, {**_ABSENT, **self._specials, **variables}, self._render_seconds)
        text = reply.get("text")
        if not isinstance(text, str):
            raise TemplateFailed(f"The model's chat template failed: {reply.get('error', 'no answer')}.")
        return text

    async def _start(self) -> asyncio.subprocess.Process:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            str(_WORKER),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={},
            start_new_session=True,
            limit=_LINE_LIMIT,
        )
        self._child = child
        hello = {
            "template": self.template,
            "memory_bytes": self._memory_bytes,
            "cpu_seconds": max(1, int(self._render_seconds)),
            "text_limit": self._text_limit,
        }
        reply = await self._ask(child, hello, _START_SECONDS)
        if not reply.get("ready"):
            await self._kill()
            raise TemplateFailed(f"The model's chat template cannot be used: {reply.get('error', 'no answer')}.")
        return child

    async def _ask(self, child: asyncio.subprocess.Process, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        """One line there, one line back; a child that fails at this, or is torn by a cancel, is killed."""
        assert child.stdin is not None
        assert child.stdout is not None
        answered = False
        try:
            async with asyncio.timeout(seconds):
                child.stdin.write(msgspec.json.encode(message) + b"\n")
                await child.stdin.drain()
                line = await child.stdout.readline()
            reply = msgspec.json.decode(line, type=dict[str, Any]) if line else {"error": "it was stopped by a limit"}
            answered = bool(line)
            return reply
        except TimeoutError:
            return {"error": f"it took longer than {seconds:g} seconds"}
        except (OSError, ValueError, msgspec.MsgspecError):
            return {"error": "it was stopped by a limit"}
        finally:
            if not answered:
                await self._kill()

    async def _kill(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        self.restarts += 1
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
        _log.warning("template_worker_stopped")

    async def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()

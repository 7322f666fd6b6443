"""The life of one engine process: listen, load, serve, drain, end.

The HTTP server is up before anything is loaded, so that progress and failures can be seen from outside.
"""

import asyncio
import concurrent.futures
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import uvicorn

from runtime.base import listening, logs
from runtime.base.clock import Clock, SystemClock
from runtime.engine import errors
from runtime.engine.causal.grammar import GrammarService
from runtime.engine.kernels import library
from runtime.engine.lifecycle import Lifecycle, Loaded
from runtime.engine.server.app import EngineApp
from runtime.engine.slumber import Slumber
from runtime.engine.templates.renderer import TemplateFailed, TemplateRenderer
from runtime.wire import codec
from runtime.wire.inference import EngineAddress, EngineSpec
from runtime.wire.reports import Phase

_log = logs.get(__name__)

# A failed engine stays this long, so that its agent can read why.
FAILED_LINGER_SECONDS: Final = 5.0
_DRAIN_POLL_SECONDS: Final = 0.05
_GUARD_SECONDS: Final = 2.0
# No step takes so long.
_STUCK_SECONDS: Final = 180.0
_BACKLOG: Final = 1024
_KEEP_ALIVE_SECONDS: Final = 75
# Every request has ended by then; this is for clients that are slow to read their last bytes.
_GOODBYE_SECONDS: Final = 5
FAILURE_FILE: Final = "failure.json"


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: this module decides what a signal means."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class EngineProcess:
    """Runs ``spec`` until it is told to stop or fails."""

    def __init__(
        self, spec: EngineSpec, clock: Clock | None = None, *, linger_seconds: float = FAILED_LINGER_SECONDS
    ) -> None:
        self._spec = spec
        self._linger_seconds = linger_seconds
        self.address = ""
        self._clock = clock or SystemClock()
        self.lifecycle = Lifecycle(spec)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._signals = 0
        self._exit_code = 0

    async def run(self) -> int:
        """Serve; return the exit code."""
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled)
        listener = _listen(self._spec.host, self._spec.port)
        app = EngineApp(self.lifecycle, served_name=self._spec.served_name, token=self._spec.token, clock=self._clock)
        server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_GOODBYE_SECONDS,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn offers nothing to wait on
            await asyncio.sleep(0.005)
        self._announce(listener)
        loading = asyncio.create_task(self._load())
        watching = [asyncio.create_task(watch(loading)) for watch in (self._nap, self._guard)]
        await self._stop.wait()
        for task in watching:
            task.cancel()
        await self._drain()
        await self._close(server, serving, loading)
        return self._exit_code

    def _signalled(self) -> None:
        """The first signal drains, the second ends at once."""
        self._signals += 1
        _log.info("signal_received", times=self._signals)
        if self._signals > 1 or self.lifecycle.loaded is None:
            self._leave()  # nothing is in hand that could be lost; a load cannot be interrupted
        self._stop.set()

    def _leave(self) -> None:
        """End at once."""
        _remove(Path(self._spec.address_file))
        logs.drain()
        os._exit(self._exit_code)

    def _announce(self, listener: socket.socket) -> None:
        """Write the address file: whole or not at all."""
        port = listener.getsockname()[1]
        address = EngineAddress(
            url=f"http://{self._spec.advertise_host}:{port}",
            pid=os.getpid(),
            started=psutil.Process().create_time(),
        )
        self.address = address.url
        _write_atomically(Path(self._spec.address_file), codec.encode(address))
        _log.info("listening", url=address.url)

    async def _load(self) -> None:
        """Bring the engine up in a thread; a failure ends the process after its reason could be read."""
        try:
            await asyncio.to_thread(self._load_in_thread)
        except errors.StartError as exc:
            await self._fail(exc.reason, exc.message)
        except asyncio.CancelledError:
            raise
        except BaseException as exc:  # the boundary of the start, panics of Rust code included: people get a reason
            _log.exception("start_failed")
            await self._fail("InternalError", f"{type(exc).__name__}: {exc}")

    def _load_in_thread(self) -> None:
        # torch and transformers are imported here, behind the open port: it takes seconds, in which kernels compile
        library.prepare()
        if self._spec.world is not None and not self._spec.world.leads:
            from runtime.engine.ranks.host import Host

            Host(self._spec, self._ranks_are, self._ranks_ended).start()
            return
        from runtime.engine.causal import startup

        template = _TemplateTrial(self._loop)
        try:
            started = startup.bring_up(
                self._spec,
                clock=self._clock,
                report=self.lifecycle.move,
                on_fatal=self._fatal,
                on_opened=lambda source: template.begin(source.chat_template, source.tokenizer.special_texts),
            )
        except BaseException:
            template.cancel()
            raise
        renderer = template.result()
        engine = started.engine
        slumber = Slumber(engine, self._clock, after_seconds=self._spec.config.sleep_after_seconds)
        grammars = GrammarService(engine.tokenizer, engine.eos_ids)
        self.lifecycle.ready(Loaded(engine=engine, renderer=renderer, grammars=grammars, slumber=slumber))

    async def _nap(self, loading: "asyncio.Task[None]") -> None:
        """Let a loaded engine sleep whenever nobody has asked it anything for as long as its config says."""
        await asyncio.wait([loading])
        loaded = self.lifecycle.loaded
        if loaded is not None:
            await loaded.slumber.watch()

    async def _guard(self, loading: "asyncio.Task[None]") -> None:
        """An engine that has work and gets nowhere has failed: it ends, and whoever started it starts it again."""
        await asyncio.wait([loading])
        loaded = self.lifecycle.loaded
        while loaded is not None:
            await self._clock.sleep(_GUARD_SECONDS)
            stuck = loaded.engine.stuck_seconds()
            if stuck > _STUCK_SECONDS:
                await self._fail("EngineStuck", f"No step has ended for {stuck:.0f} seconds, and there is work.")
                return

    def _fatal(self, message: str) -> None:
        """Called by the engine's thread when it gives up."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._fail("EngineFailed", message)))

    def _ranks_are(self, phase: Phase, progress: float | None) -> None:
        """Called by threads of a node that does not lead. One that drains does so until its leader has."""
        if self.lifecycle.phase is not Phase.DRAINING:
            self.lifecycle.move(phase, progress)

    def _ranks_ended(self, reason: str, message: str) -> None:
        """Called by a thread of a node that does not lead: its ranks, or their leader, are gone."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._after_ranks(reason, message)))

    async def _after_ranks(self, reason: str, message: str) -> None:
        if self.lifecycle.phase is Phase.DRAINING:  # the leader has finished what it had, and so has this node
            self._stop.set()
        else:
            await self._fail(reason, message)

    async def _fail(self, reason: str, message: str) -> None:
        if self.lifecycle.phase is Phase.FAILED:
            return  # what followed from the first failure explains nothing
        self.lifecycle.fail(reason, message)
        _log.error("engine_failed", reason=reason, message=message)
        with contextlib.suppress(OSError):
            folder = Path(self._spec.address_file).parent
            _write_atomically(folder / FAILURE_FILE, codec.encode(self.lifecycle.state()))
        self._exit_code = errors.EXIT_START_FAILED
        await self._clock.sleep(self._linger_seconds)
        self._stop.set()

    async def _drain(self) -> None:
        """Let everything that was accepted finish."""
        loaded = self.lifecycle.loaded
        if loaded is None or self._exit_code:
            return
        self.lifecycle.move(Phase.DRAINING)
        while loaded.engine.num_jobs:
            await self._clock.sleep(_DRAIN_POLL_SECONDS)

    async def _close(self, server: _Server, serving: asyncio.Task[None], loading: asyncio.Task[None]) -> None:
        loaded = self.lifecycle.loaded
        if loaded is None and self._exit_code and not loading.done():
            self._leave()  # it waits for ranks that will not come, and cannot be interrupted
        if loaded is not None:
            await asyncio.to_thread(loaded.engine.stop)
            loaded.grammars.close()
            if loaded.renderer is not None:
                await loaded.renderer.close()
        server.should_exit = True
        await serving
        await loading
        _remove(Path(self._spec.address_file))


class _TemplateTrial:
    """The chat template's child process starts and renders once while weights are read."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        assert loop is not None
        self._loop = loop
        self._renderer: TemplateRenderer | None = None
        self._trial: concurrent.futures.Future[None] | None = None

    def begin(self, template: str | None, specials: dict[str, str]) -> None:
        """Called from the loading thread, as are the others."""
        if template:
            self._renderer = TemplateRenderer(template, specials)
            self._trial = asyncio.run_coroutine_threadsafe(_try_template(self._renderer), self._loop)

    def result(self) -> TemplateRenderer | None:
        """The renderer, once it has rendered; ``None`` when the model has no template."""
        if self._trial is not None:
            self._trial.result()
        return self._renderer

    def cancel(self) -> None:
        """The load failed: end the child."""
        if self._renderer is not None:
            asyncio.run_coroutine_threadsafe(self._renderer.close(), self._loop)


async def _try_template(renderer: TemplateRenderer) -> None:
    """Render once at start: a template that fails is known before the first chat, and chats are refused with why."""
    try:
        await renderer.render({"messages": [{"role": "user", "content": "."}], "add_generation_prompt": True})
    except TemplateFailed as exc:
        _log.warning("chat_template_unusable", error=exc.message)


def _listen(host: str, port: int) -> socket.socket:
    """Bind, so that the port is known before uvicorn starts.

    Raises:
        errors.StartError: the address is taken or not ours.
    """
    try:
        return listening.bind(host, port)
    except OSError as exc:
        raise errors.StartError("AddressInUse", f"Cannot listen on {host}:{port}: {exc.strerror}.") from exc


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _write_atomically(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    partial.write_bytes(data)
    partial.replace(path)

"""`make run`: checks, ordered start, first accounts, sample model, and then watching until somebody says stop."""

import asyncio
import contextlib
import os
import shlex
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from runtime.base.clock import SystemClock
from runtime.embedded import bootstrap, checks, processes, sample, simulated, sockets, status, sweep
from runtime.embedded.bootstrap import Credentials
from runtime.embedded.errors import EmbeddedError, StartError
from runtime.embedded.places import Places
from runtime.embedded.postgres import Postgres
from runtime.embedded.processes import Environments
from runtime.embedded.screen import Screen
from runtime.embedded.simulated import SimulatedNode
from runtime.embedded.status import Status
from runtime.embedded.supervisor import State, Supervisor, Unit
from runtime.embedded.valkey import Valkey

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXIT_OK: Final = 0
EXIT_REFUSED: Final = 1
_LEFTOVERS_S: Final = 30.0


@dataclass(frozen=True)
class Options:
    """What the command line chose."""

    with_sample: bool = True
    simulate: tuple[SimulatedNode, ...] = ()


class Stop:
    """What the signals say: the first asks everything to end, the second ends it now."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.again = asyncio.Event()

    def listen(self) -> None:
        """Take over the signals that mean "end". Call it inside the running loop."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._heard)

    def _heard(self) -> None:
        (self.again if self.asked.is_set() else self.asked).set()


def up(places: Places, options: Options, screen: Screen, env: Mapping[str, str]) -> int:
    """Run Millpond until it is told to stop. Return the exit code."""
    lock = checks.Lock(places)
    try:
        checks.check_python()
        checks.prepare_home(places)
        lock.take()
        checks.check_disk(places)
        checks.check_ports(places)
        return asyncio.run(_run(places, options, screen, env, status.read(places.status)))
    except EmbeddedError as error:
        _show(error, screen)
        return EXIT_REFUSED
    finally:
        lock.release()


async def _run(places: Places, options: Options, screen: Screen, env: Mapping[str, str], earlier: Status | None) -> int:
    began = time.monotonic()
    stop = Stop()
    stop.listen()
    if earlier is not None:
        with screen.step("Waiting for what an earlier run left behind"):
            await sweep.end_marked(earlier.mark, clock=SystemClock(), wait_s=_LEFTOVERS_S)
    async with _supervisor(places, screen, stop) as supervisor:
        start = asyncio.create_task(_bring_up(supervisor, places, options, screen, env))
        asked = asyncio.create_task(stop.asked.wait())
        await asyncio.wait({start, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)
            asked.cancel()
            return EXIT_OK
        if start.exception() is not None:
            asked.cancel()
        welcome = start.result()
        screen.say("")
        screen.panel(f"Millpond is ready ({time.monotonic() - began:.0f} s)", welcome)
        screen.say("Ctrl-C stops everything. Logs: " + str(places.logs), style="dim")
        await asked
        screen.say("")
    return EXIT_OK


@contextlib.asynccontextmanager
async def _supervisor(places: Places, screen: Screen, stop: Stop) -> AsyncIterator[Supervisor]:
    events = _Events(screen)
    supervisor = Supervisor(clock=SystemClock(), logs=places.logs, status_file=places.status, listener=events.heard)
    hurry = asyncio.create_task(_hurry(stop, supervisor))
    try:
        yield supervisor
    finally:
        events.quiet = True
        # From here on a first Ctrl-C (after a failed start) must not cut the stopping off either.
        stop.asked.set()
        with screen.step("Stopping"):
            await supervisor.stop()
        sockets.forget(places.run)
        hurry.cancel()


async def _hurry(stop: Stop, supervisor: Supervisor) -> None:
    await stop.again.wait()
    supervisor.hurry()


class _Events:
    """Tells the person about processes that end by themselves and come back."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._troubled: set[str] = set()
        self.quiet = False

    def heard(self, unit: Unit) -> None:
        """Called at each change of state."""
        name = unit.program.name
        if self.quiet:
            return
        if unit.state is State.WAITING:
            self._troubled.add(name)
            self._screen.say(
                f"{name} ended ({_ending(unit.last_end)}) and is started again. Log: {unit.log.path}", style="yellow"
            )
        elif unit.state is State.FAILED:
            self._troubled.add(name)
            self._screen.say(f"{name} keeps ending; it is tried again each minute. Log: {unit.log.path}", style="red")
        elif unit.state is State.READY and name in self._troubled:
            self._troubled.discard(name)
            self._screen.say(f"{name} is back", style="green")


async def _bring_up(
    supervisor: Supervisor, places: Places, options: Options, screen: Screen, base: Mapping[str, str]
) -> list[str]:
    """Start everything in order and return the lines to greet with."""
    env, fresh = await _servers(supervisor, places, screen, base)
    # On a later start the engines load their weights while the control plane comes up: they need nothing from it.
    early = not fresh and bootstrap.have_joined(places)
    fetching = options.with_sample and sample.is_missing(places)
    if early:
        await _data_plane(supervisor, places, env, screen)
    with screen.step("Database tables"):
        await bootstrap.migrate(supervisor, places, env)
    with screen.step("Accounts, static files" + (", sample model (93 MB)" if fetching else "")):
        (credentials, new), *_ = await _together(
            bootstrap.people(supervisor, places, env),
            bootstrap.collect_static(supervisor, places, env),
            sample.prefetch(supervisor, places, env.tool, wanted=fetching),
        )
    with screen.step("Console, API, background work"):
        await supervisor.start(processes.web(places, env), processes.worker(places, env), processes.beat(places, env))
    if not early:
        await _data_plane(supervisor, places, env, screen)
    elif new:  # the database is another one: what they held is worth nothing, and new join tokens lie ready
        supervisor.renew("agent")
        supervisor.renew("gateway")
    if options.simulate:
        with screen.step(f"Simulated nodes ({len(options.simulate)})"):
            await simulated.start(supervisor, places, env, options.simulate, anew=new)
    running = await sample.serve(
        supervisor, places, env, credentials, screen, clock=SystemClock(), publish=options.with_sample
    )
    return _welcome(places, credentials, new=new, model=running)


async def _together(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run ``work`` side by side and return the results in order; when one fails, the others are ended first."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _data_plane(supervisor: Supervisor, places: Places, env: Environments, screen: Screen) -> None:
    """Start agent and gateway; in this order, so that at the end the gateway finishes its streams first."""
    with screen.step("Node agent and gateway"):
        await supervisor.start(processes.agent(places, env))
        await supervisor.start(processes.gateway(places, env))


async def _servers(
    supervisor: Supervisor, places: Places, screen: Screen, base: Mapping[str, str]
) -> tuple[Environments, bool]:
    """Start the embedded servers that the environment does not replace by others.

    Returns the environments for everything else, and whether the database was made just now.
    """
    fresh = False
    database_url, valkey_url = places.database_url, places.valkey_url
    if not database_url:
        postgres = Postgres(home=places.postgres, sockets_in=places.run)
        with screen.step(f"Postgres {postgres.binaries.major}") as step:
            fresh = postgres.create()
            step.remark = "new database" if fresh else ""
            env = processes.environments(places, database_url="", valkey_url="", base=base)
            await supervisor.start(processes.postgres(postgres, places, env))
        database_url = postgres.url()
    if not valkey_url:
        valkey = Valkey(home=places.valkey, sockets_in=places.run)
        with screen.step("Valkey"):
            valkey.create()
            env = processes.environments(places, database_url="", valkey_url="", base=base)
            await supervisor.start(processes.valkey(valkey, places, env))
        valkey_url = valkey.url()
    return processes.environments(places, database_url=database_url, valkey_url=valkey_url, base=base), fresh


def _welcome(places: Places, credentials: Credentials, *, new: bool, model: str | None) -> list[str]:
    lines = [f"Console   {places.web_url}", f"Login     {credentials.admin_email}"]
    if new and credentials.admin_password:
        lines.append(f"Password  {credentials.admin_password}   (shown this once; kept in {places.credentials})")
    else:
        lines.append(f"Password  as set at the first start; kept in {places.credentials}")
    lines.append(f"Gateway   {places.gateway_url}/v1   (OpenAI-compatible)")
    if new and credentials.api_key:
        lines.append(f"API key   {credentials.api_key}")
    if model is None:
        upload = sample.how_to_upload(places, credentials.tenant or "demo")
        call = _curl(places, credentials, "my-model", show_key=new)
        return [*lines, "", "No sample model is served. Upload a model:", *upload, "Then call it:", *call]
    return [*lines, "", "Try it:", *_curl(places, credentials, model, show_key=new)]


def _curl(places: Places, credentials: Credentials, model: str, *, show_key: bool) -> list[str]:
    """Return a command that streams a chat completion; the key itself stands in it only when it is shown anyway."""
    shown = bool(show_key and credentials.api_key)
    key = credentials.api_key if shown else "$MILLPOND_API_KEY"
    # Bounded and cool: a small model that is left to itself at temperature 1 writes nonsense until its context is full.
    asked = '"messages":[{"role":"user","content":"What is a millpond?"}]'
    body = f'{{"model":"{model}","stream":true,"max_tokens":200,"temperature":0.2,{asked}}}'
    take = f"""sed -n 's/.*"api_key": *"\\(.*\\)".*/\\1/p' {shlex.quote(str(places.credentials))}"""
    return [
        *([] if shown else [f'  export MILLPOND_API_KEY="$({take})"']),
        f'  curl -N {places.gateway_url}/v1/chat/completions -H "Authorization: Bearer {key}" \\',
        f"    -H 'Content-Type: application/json' -d '{body}'",
    ]


def _ending(code: int | None) -> str:
    if code is None:
        return "unknown"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _show(error: EmbeddedError, screen: Screen) -> None:
    screen.error(str(error))
    if isinstance(error, StartError) and error.log:
        screen.say(f"The whole log: {error.log}")


def stop_running(places: Places, screen: Screen) -> int:
    """Ask the Millpond that runs on this state folder to stop, and wait for it. Return the exit code."""
    pid = checks.holder(places.lock)
    if pid is None:
        screen.say(f"Nothing runs on {places.home}.")
        return EXIT_OK
    with screen.step("Stopping"):
        os.kill(pid, signal.SIGTERM)
        while checks.holder(places.lock) == pid:
            time.sleep(0.1)
    return EXIT_OK

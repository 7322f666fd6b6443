"""Keeps the processes of one machine running: ordered start, restart with back-off, drain, and no orphan.

Stages start one after the other; the programs of a stage go together. At the end layers stop from the highest down.
The supervisor holds the only write end of the lifeline: however it ends, everything below it ends too.
"""

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from runtime.base.clock import Clock
from runtime.embedded import spawn, status, sweep
from runtime.embedded.errors import StartError
from runtime.embedded.liveness import Liveness, until_hung
from runtime.embedded.logfiles import RotatingLog
from runtime.embedded.probes import Probe
from runtime.embedded.restart import RestartHistory, RestartPolicy

_POLL_S: Final = 0.1
_KILL_WAIT_S: Final = 5.0


class State(StrEnum):
    """Where a program stands."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"  # ended; starts again after its back-off
    FAILED = "failed"  # ended too often; tried again now and then
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True)
class Program:
    """One process to keep running. ``death_signal`` is what it gets when the supervisor is killed.

    At the end higher layers stop before lower ones; within a layer, what was started last stops first.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    ready: Probe
    ready_s: float = 60.0
    liveness: Liveness | None = None  # none: only its end is noticed
    stop_signal: signal.Signals = signal.SIGTERM
    stop_s: float = 15.0
    death_signal: signal.Signals = signal.SIGKILL
    user: tuple[int, int] | None = None
    layer: int = 0
    restart: RestartPolicy = field(default_factory=RestartPolicy)


@dataclass
class Unit:
    """A program and its present process. Also what its probe looks at."""

    program: Program
    log: RotatingLog
    clock: Clock
    history: RestartHistory
    state: State = State.STARTING
    process: asyncio.subprocess.Process | None = None
    started_at: float = 0.0
    restarts: int = 0
    last_end: int | None = None
    keeper: asyncio.Task[None] | None = None
    readers: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return None if self.process is None or self.process.returncode is not None else self.process.pid

    def said(self) -> str:
        return self.log.tail()

    def age_s(self) -> float:
        return self.clock.monotonic() - self.started_at


Listener = Callable[[Unit], None]


class Supervisor:
    """Runs programs until :meth:`stop`. Use it from the main thread (parent-death signals are tied to the thread)."""

    def __init__(
        self, *, clock: Clock, logs: Path, status_file: Path, listener: Listener | None = None, sweep_s: float = 8.0
    ) -> None:
        self._clock = clock
        self._sweep_s = sweep_s  # how long grandchildren may take to end once the lifeline is cut
        self._logs = logs
        self._status_file = status_file
        self._listener = listener
        self._stages: list[list[Unit]] = []
        self._hurry = asyncio.Event()
        self._stopped = False
        self._mark = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._lifeline_read, self._lifeline_write = os.pipe()

    @property
    def units(self) -> list[Unit]:
        return [unit for stage in self._stages for unit in stage]

    @property
    def pids(self) -> dict[str, int]:
        """Name to process id, of those that run."""
        return {unit.program.name: pid for unit in self.units if (pid := unit.pid) is not None}

    async def start(self, *programs: Program) -> None:
        """Start a stage and return when all of it is ready; from then on it is kept running.

        Raises:
            StartError: one ended or was not ready in time.
        """
        stage = [self._unit(program) for program in programs]
        self._stages.append(stage)
        async with contextlib.AsyncExitStack() as undo:
            tasks = [asyncio.create_task(self._first_start(unit)) for unit in stage]
            undo.push_async_callback(_cancel, tasks)
            await asyncio.gather(*tasks)
        for unit in stage:
            unit.keeper = asyncio.create_task(self._keep(unit), name=f"keep-{unit.program.name}")

    async def step(self, *, name: str, argv: Sequence[str], env: Mapping[str, str], cwd: Path, limit_s: float) -> str:
        """Run a command to its end and return what it wrote to standard output.

        Raises:
            StartError: it failed or took longer than ``limit_s``.
        """
        log = RotatingLog(self._logs / f"{name}.log")
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=cwd,
            **self._spawn_options(env, signal.SIGKILL, None),
        )
        try:
            async with asyncio.timeout(limit_s):
                output, errors = await process.communicate()
        except TimeoutError:
            raise StartError(f"{name} took longer than {limit_s:.0f} s", log=str(log.path)) from None
        finally:
            if process.returncode is None:
                _signal_group(process.pid, signal.SIGKILL)
                await process.wait()
        log.write(errors)  # standard output may hold secrets: it goes to the caller alone
        last = log.tail(lines=12)
        log.close()
        if process.returncode != 0:
            raise StartError(f"{name} failed (exit code {process.returncode}):\n{last}", log=str(log.path))
        return output.decode("utf-8", "replace")

    def renew(self, name: str) -> None:
        """Ask a program that runs to end; it is started again with what it then finds."""
        for unit in self.units:
            if unit.program.name == name and unit.process is not None and unit.pid is not None:
                unit.process.send_signal(unit.program.stop_signal)

    def hurry(self) -> None:
        """Stop waiting for programs that drain: end them now."""
        self._hurry.set()

    async def stop(self) -> None:
        """Stop layer by layer: ask, wait, kill; then end whatever was left behind. Once is enough."""
        if self._stopped:
            return
        self._stopped = True
        groups: dict[tuple[int, int], list[Unit]] = {}
        for number, stage in enumerate(self._stages):
            for unit in stage:
                groups.setdefault((unit.program.layer, number), []).append(unit)
        for _, group in sorted(groups.items(), reverse=True):
            await asyncio.gather(*(self._end(unit) for unit in group))
        os.close(self._lifeline_write)  # engines and other grandchildren see this and end
        os.close(self._lifeline_read)
        await sweep.end_marked(self._mark, clock=self._clock, wait_s=self._sweep_s)
        for unit in self.units:
            await _cancel(list(unit.readers))
            unit.log.close()
        self._status_file.unlink(missing_ok=True)

    # --- one program -------------------------------------------------------------------------------------------

    def _unit(self, program: Program) -> Unit:
        log = RotatingLog(self._logs / f"{program.name}.log")
        return Unit(program=program, log=log, clock=self._clock, history=RestartHistory(program.restart))

    async def _first_start(self, unit: Unit) -> None:
        if await self._become_ready(unit, await self._launch(unit)):
            return
        how = "was not ready in time" if unit.pid is not None else f"ended at once (exit code {unit.last_end})"
        last = unit.log.tail(lines=12)
        raise StartError(f"{unit.program.name} {how}:\n{last}", log=str(unit.log.path))

    async def _launch(self, unit: Unit) -> asyncio.subprocess.Process:
        self._move(unit, State.STARTING)
        unit.log.mark()
        program = unit.program
        read, write = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *program.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                cwd=program.cwd,
                **self._spawn_options(program.env, program.death_signal, program.user),
            )
        except OSError as error:
            os.close(read)
            raise StartError(f"{program.name} could not be started: {error}", log=str(unit.log.path)) from error
        finally:
            os.close(write)
        unit.process = process
        unit.started_at = self._clock.monotonic()
        reader = asyncio.create_task(_copy(read, unit.log), name=f"log-{program.name}")
        unit.readers.add(reader)
        reader.add_done_callback(unit.readers.discard)
        self._write_status()
        return process

    def _spawn_options(
        self, env: Mapping[str, str], death: signal.Signals, user: tuple[int, int] | None
    ) -> dict[str, Any]:
        marked = {**env, sweep.ENV: self._mark}
        return spawn.options(death_signal=death, lifeline_fd=self._lifeline_read, env=marked, user=user)

    async def _become_ready(self, unit: Unit, process: asyncio.subprocess.Process) -> bool:
        ended = asyncio.create_task(process.wait())
        deadline = self._clock.monotonic() + unit.program.ready_s
        try:
            while not ended.done() and self._clock.monotonic() < deadline:
                if await unit.program.ready(unit):
                    self._move(unit, State.READY)
                    return True
                await asyncio.wait({ended}, timeout=_POLL_S)
        finally:
            ended.cancel()
        unit.last_end = process.returncode
        return False

    async def _keep(self, unit: Unit) -> None:
        """Wait for the process to end, or to hang, and start it again, for as long as the supervisor runs."""
        while unit.process is not None:
            await self._until_end(unit, unit.process)
            while True:
                decision = unit.history.after_end(self._clock.monotonic())
                self._move(unit, State.FAILED if decision.exhausted else State.WAITING)
                await self._clock.sleep(decision.delay_s)
                if await self._again(unit):
                    break

    async def _until_end(self, unit: Unit, process: asyncio.subprocess.Process) -> None:
        ended = asyncio.create_task(process.wait())
        waits: set[asyncio.Task[Any]] = {ended}
        if unit.program.liveness is not None:
            waits.add(asyncio.create_task(until_hung(unit.program.liveness, unit, self._clock)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                unit.log.write(b"supervisor: the process runs but does not answer; it is ended and started again\n")
                await self._kill(unit)
        finally:
            await _cancel(list(waits))
        unit.last_end = process.returncode

    async def _again(self, unit: Unit) -> bool:
        unit.restarts += 1
        try:
            process = await self._launch(unit)
        except StartError as error:
            unit.log.write(f"supervisor: {error}\n".encode())
            return False
        if await self._become_ready(unit, process):
            return True
        await self._kill(unit)
        return False

    async def _end(self, unit: Unit) -> None:
        if unit.keeper is not None:
            await _cancel([unit.keeper])
        if unit.process is not None and unit.process.returncode is None:
            self._move(unit, State.STOPPING)
            with contextlib.suppress(ProcessLookupError):
                unit.process.send_signal(unit.program.stop_signal)
            exited = asyncio.create_task(unit.process.wait())
            hurried = asyncio.create_task(self._hurry.wait())
            await asyncio.wait({exited, hurried}, timeout=unit.program.stop_s, return_when=asyncio.FIRST_COMPLETED)
            await _cancel([exited, hurried])
            await self._kill(unit)
        self._move(unit, State.STOPPED)

    async def _kill(self, unit: Unit) -> None:
        process = unit.process
        if process is None:
            return
        if process.returncode is None:
            _signal_group(process.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _KILL_WAIT_S)
        unit.last_end = process.returncode

    def _move(self, unit: Unit, state: State) -> None:
        unit.state = state
        self._write_status()
        if self._listener is not None:
            self._listener(unit)

    def _write_status(self) -> None:
        programs = [
            status.ProgramStatus(
                name=unit.program.name,
                state=unit.state.value,
                pid=unit.pid,
                restarts=unit.restarts,
                last_end=unit.last_end,
                log=str(unit.log.path),
            )
            for unit in self.units
        ]
        status.write(self._status_file, status.Status(pid=os.getpid(), mark=self._mark, programs=programs))


async def _copy(descriptor: int, log: RotatingLog) -> None:
    """Copy a process's output to its log until the last process that holds the pipe is gone."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        while data := await reader.read(65536):
            log.write(data)
    finally:
        transport.close()


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

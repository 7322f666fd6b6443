"""The supervisor with real processes: order, restart in place, drain, and no orphan however it ends."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from runtime.base.clock import SystemClock
from runtime.embedded import probes, status, sweep
from runtime.embedded.errors import StartError
from runtime.embedded.liveness import Liveness
from runtime.embedded.restart import RestartPolicy
from runtime.embedded.supervisor import Program, State, Supervisor

ROOT = Path(__file__).resolve().parents[3]
SERVE = "import signal, sys, time; print('up', flush=True); time.sleep(600)"
QUICK = RestartPolicy(first_s=0.01, longest_s=0.02, budget=3, window_s=600, slow_s=600)


def program(name: str, code: str, **more: object) -> Program:
    options: dict[str, object] = {"ready": probes.says("up"), "ready_s": 20.0, "restart": QUICK} | more
    return Program(name=name, argv=[sys.executable, "-c", code], env=dict(os.environ), cwd=Path("/"), **options)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  what is awaited is another process
            await asyncio.sleep(0.02)


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[[], Supervisor]]:
    made: list[Supervisor] = []

    def new() -> Supervisor:
        file = tmp_path / "run" / "status.json"
        made.append(Supervisor(clock=SystemClock(), logs=tmp_path / "logs", status_file=file, sweep_s=0.5))
        return made[-1]

    yield new
    for supervisor in made:
        supervisor.hurry()
        await supervisor.stop()


async def test_a_program_that_ends_is_started_again_in_place(make: Callable[[], Supervisor]) -> None:
    supervisor = make()
    await supervisor.start(program("web", SERVE))
    first = supervisor.pids["web"]
    os.kill(first, signal.SIGKILL)
    await until(lambda: supervisor.units[0].restarts == 1 and supervisor.units[0].state is State.READY)
    assert supervisor.pids["web"] != first
    assert supervisor.units[0].last_end == -signal.SIGKILL


async def test_a_program_that_runs_but_does_not_answer_is_started_again(
    make: Callable[[], Supervisor], tmp_path: Path
) -> None:
    asked: list[bool] = []

    async def answers() -> bool:
        asked.append(supervisor.units[0].restarts > 0 or len(asked) in {0, 2})
        return asked[-1]

    supervisor = make()
    liveness = Liveness(probe=probes.calls(answers), every_s=0.02, misses=3)
    await supervisor.start(program("gateway", SERVE, liveness=liveness))
    first = supervisor.pids["gateway"]
    await until(lambda: supervisor.units[0].restarts == 1 and supervisor.units[0].state is State.READY)
    await until(lambda: len(asked) > 10)
    assert asked[:6] == [True, False, True, False, False, False], "an answer between two silences starts the count anew"
    assert supervisor.units[0].restarts == 1
    assert supervisor.pids["gateway"] != first
    assert "does not answer" in (tmp_path / "logs" / "gateway.log").read_text()


async def test_the_status_file_names_every_program(make: Callable[[], Supervisor], tmp_path: Path) -> None:
    supervisor = make()
    await supervisor.start(program("web", SERVE), program("worker", SERVE))
    seen = status.read(tmp_path / "run" / "status.json")
    assert seen is not None
    assert seen.pid == os.getpid()
    assert {row.name: row.state for row in seen.programs} == {"web": "ready", "worker": "ready"}
    assert {row.name: row.pid for row in seen.programs} == supervisor.pids
    assert {process.pid for process in sweep.marked(seen.mark)} == set(supervisor.pids.values())


async def test_a_program_that_ends_at_once_fails_the_start_and_shows_its_last_words(
    make: Callable[[], Supervisor], tmp_path: Path
) -> None:
    with pytest.raises(StartError, match="cannot open the shop") as caught:
        await make().start(program("web", "import sys; sys.exit('cannot open the shop')"))
    assert caught.value.log == str(tmp_path / "logs" / "web.log")


async def test_a_program_that_is_not_ready_in_time_fails_the_start(make: Callable[[], Supervisor]) -> None:
    with pytest.raises(StartError, match="not ready in time"):
        await make().start(program("web", "import time; time.sleep(600)", ready_s=0.5))


async def test_a_program_that_keeps_ending_is_reported_as_failed(
    make: Callable[[], Supervisor], tmp_path: Path
) -> None:
    flag = tmp_path / "broken"
    code = (
        f"import os, sys, time; print('up', flush=True); os.path.exists({str(flag)!r}) and sys.exit(3); time.sleep(600)"
    )
    supervisor = make()
    await supervisor.start(program("worker", code, ready=probes.says("^never$|up")))
    flag.touch()
    os.kill(supervisor.pids["worker"], signal.SIGKILL)
    await until(lambda: supervisor.units[0].state is State.FAILED)
    assert supervisor.units[0].restarts == QUICK.budget


async def test_stopping_goes_in_reverse_and_waits_for_the_drain(make: Callable[[], Supervisor], tmp_path: Path) -> None:
    log = tmp_path / "order"
    code = textwrap.dedent("""
        import signal, sys, time
        def leave(*_):
            time.sleep(0.2)
            with open({log!r}, "a") as file: file.write({name!r} + "\\n")
            sys.exit(0)
        signal.signal(signal.SIGTERM, leave)
        print("up", flush=True)
        time.sleep(600)
    """)
    supervisor = make()
    for name, layer in (("postgres", 0), ("valkey", 0), ("gateway", 3), ("web", 1)):
        await supervisor.start(program(name, code.format(log=str(log), name=name), layer=layer))
    await supervisor.stop()
    assert log.read_text().split() == ["gateway", "web", "valkey", "postgres"]
    assert supervisor.pids == {}


async def test_a_program_that_does_not_end_when_asked_is_killed_with_its_group(make: Callable[[], Supervisor]) -> None:
    code = textwrap.dedent("""
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print("up", child.pid, flush=True)
        time.sleep(600)
    """)
    supervisor = make()
    await supervisor.start(program("web", code, stop_s=0.3))
    pids = [supervisor.pids["web"], int(supervisor.units[0].said().split()[1])]
    await supervisor.stop()
    await until(lambda: not any(alive(pid) for pid in pids))


async def test_a_grandchild_that_left_the_group_is_ended_with_the_rest(make: Callable[[], Supervisor]) -> None:
    code = textwrap.dedent("""
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        print("up", child.pid, flush=True)
        time.sleep(600)
    """)
    supervisor = make()
    await supervisor.start(program("agent", code))
    engine = int(supervisor.units[0].said().split()[1])
    os.kill(supervisor.pids["agent"], signal.SIGKILL)
    await until(lambda: supervisor.units[0].restarts == 1 and supervisor.units[0].state is State.READY)
    assert alive(engine), "a restart of the agent leaves its engines alone"
    await supervisor.stop()
    await until(lambda: not alive(engine))


async def test_a_step_returns_its_output_and_keeps_it_out_of_the_log(
    make: Callable[[], Supervisor], tmp_path: Path
) -> None:
    code = "import sys; print('the password'); print('working', file=sys.stderr)"
    argv = [sys.executable, "-c", code]
    output = await make().step(name="bootstrap", argv=argv, env=dict(os.environ), cwd=tmp_path, limit_s=20)
    assert output == "the password\n"
    assert (tmp_path / "logs" / "bootstrap.log").read_text() == "working\n"


async def test_a_step_that_fails_says_so(make: Callable[[], Supervisor], tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import sys; sys.exit('no such table')"]
    supervisor = make()
    with pytest.raises(StartError, match="no such table"):
        await supervisor.step(name="migrate", argv=argv, env=dict(os.environ), cwd=tmp_path, limit_s=20)


LONE_SUPERVISOR = """
import asyncio, os, sys
from pathlib import Path
from runtime.base.clock import SystemClock
from runtime.embedded import probes
from runtime.embedded.supervisor import Program, Supervisor

STUBBORN = '''
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
'''
ENGINE = '''
import time
from runtime.base import lifeline
lifeline.watch()
print("up", flush=True)
time.sleep(600)
'''
AGENT = f'''
import subprocess, sys, time
from runtime.base import lifeline
fd = lifeline.inherited_fd()
more = dict(start_new_session=True, pass_fds=[fd], stdout=subprocess.PIPE)
child = subprocess.Popen([sys.executable, "-c", {ENGINE!r}], **more)
child.stdout.readline()
print("up", child.pid, flush=True)
time.sleep(600)
'''

async def main():
    home = Path(sys.argv[1])
    supervisor = Supervisor(clock=SystemClock(), logs=home / "logs", status_file=home / "status.json")
    for name, code in (("web", STUBBORN), ("agent", AGENT)):
        await supervisor.start(Program(name=name, argv=[sys.executable, "-c", code], env=dict(os.environ),
            cwd=home, ready=probes.says("up")))
    engine = int(supervisor.units[1].said().split()[1])
    print(*supervisor.pids.values(), engine, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_a_supervisor_that_is_killed_leaves_no_orphan(tmp_path: Path) -> None:
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    lone = subprocess.Popen([sys.executable, "-c", LONE_SUPERVISOR, str(tmp_path)], stdout=subprocess.PIPE, env=env)
    assert lone.stdout is not None
    pids = [int(word) for word in lone.stdout.readline().split()]
    assert len(pids) == 3
    assert all(alive(pid) for pid in pids)
    lone.kill()
    lone.wait()
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def marked_by_two() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes: one of a run that was killed, one of another run."""
    started = [
        subprocess.Popen([sys.executable, "-c", SERVE], env=dict(os.environ, MILLPOND_SUPERVISOR=mark))
        for mark in ("1-old", "2-other")
    ]
    yield started
    for process in started:
        process.kill()
        process.wait()


async def test_the_next_start_ends_what_a_killed_run_left_behind(marked_by_two: list[subprocess.Popen[bytes]]) -> None:
    old, other = marked_by_two
    await until(lambda: len(sweep.marked("1-old")) == 1)
    assert await sweep.end_marked("1-old", clock=SystemClock(), wait_s=0.0) == 1
    assert not alive(old.pid)
    assert alive(other.pid)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

"""Engine processes: started in a session of their own, recognised after a restart, ended with their children.

A process is known by (boot id, pid, start ticks): a pid alone may belong to somebody else by the time it is used.
"""

import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. Both ``None``: it was not our child, so the kernel told somebody else."""

    code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"killed by {signal.Signals(self.signal).name}" if self.signal in _SIGNALS else "killed by a signal"
        if self.code is not None:
            return f"exit code {self.code}"
        return "exit status unknown"


_SIGNALS = frozenset(item.value for item in signal.Signals)


def start_ticks(pid: int) -> int | None:
    """Start time of a live process in kernel ticks since boot; ``None`` when there is none (a zombie is none)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _start_elsewhere(pid) if not Path("/proc/self/stat").exists() else None
    fields = text.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def _start_elsewhere(pid: int) -> int | None:
    """The same on a system without /proc."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else int(process.create_time() * 100)
    except psutil.Error:
        return None


class EngineProcess:
    """One engine, started here (``popen``) or adopted. ``ticks`` pins the identity of ``pid``."""

    def __init__(self, pid: int, ticks: int, popen: "subprocess.Popen[bytes] | None" = None) -> None:
        self.pid = pid
        self.ticks = ticks
        self._popen = popen
        self._exit: Exit | None = None

    @property
    def adopted(self) -> bool:
        """True when an earlier agent started it."""
        return self._popen is None

    def poll(self) -> Exit | None:
        """How it ended, or ``None`` while it runs. The first call that sees the end kills what it left behind."""
        if self._exit is None:
            ended = self._ended()
            if ended is not None:
                self._exit = ended
        return self._exit

    def _ended(self) -> Exit | None:
        if self._popen is None:
            if start_ticks(self.pid) == self.ticks:
                return None
            kill_session(self.pid)
            return Exit()
        # Look without reaping: while the zombie holds the pid, the group id cannot mean anybody else.
        try:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
        except ChildProcessError:  # somebody else in this process reaped it
            self._popen = None
            return self._ended()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        kill_session(self.pid)
        code = self._popen.wait()
        return Exit(signal=-code) if code < 0 else Exit(code=code)

    def signal(self, number: signal.Signals) -> None:
        """Send ``number`` to the whole group; nothing happens when the process is gone."""
        if self.poll() is None and start_ticks(self.pid) == self.ticks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def memory_bytes(self) -> int:
        """Resident bytes of the process and its children; 0 when it is gone."""
        try:
            process = psutil.Process(self.pid)
            return sum(item.memory_info().rss for item in [process, *process.children(recursive=True)])
        except psutil.Error:
            return 0


def kill_session(leader: int) -> None:
    """Kill what is left of the session that the dead process ``leader`` opened; no-op while the leader lives."""
    if start_ticks(leader) is not None:
        return
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if pid != leader and os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)


def spawn(
    command: Sequence[str], *, env: Mapping[str, str], folder: Path, log_file: Path, pass_fds: Sequence[int] = ()
) -> EngineProcess:
    """Start ``command`` in a new session, output appended to ``log_file``.

    The log is a file and not a pipe: the engine must be able to write on when this agent is gone.

    Raises:
        OSError: the program cannot be started.
    """
    fd = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        popen = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=folder,
            pass_fds=tuple(pass_fds),
            start_new_session=True,
            umask=0o077,
        )
    finally:
        os.close(fd)
    # A child that died at once is a zombie and still ours; its ticks no longer matter.
    return EngineProcess(popen.pid, start_ticks(popen.pid) or 0, popen)


def adopt(pid: int, ticks: int) -> EngineProcess | None:
    """Take over a process that an earlier agent started; ``None`` when it is gone or ``pid`` is somebody else."""
    return EngineProcess(pid, ticks) if ticks and start_ticks(pid) == ticks else None


def running_specs(root: Path) -> dict[int, Path]:
    """Every live process started with ``--spec FILE`` where FILE lies below ``root``: pid to FILE.

    Finds engines whose start was not written down because the agent died in between.
    """
    found: dict[int, Path] = {}
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        for word, following in itertools.pairwise(words):
            if word == "--spec" and Path(following).is_relative_to(root) and _leads_session(process.pid):
                found[process.pid] = Path(following)
    return found


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except OSError:
        return False

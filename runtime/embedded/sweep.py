"""Finds and ends what a supervisor left behind: every process below it carries its mark in the environment."""

import contextlib
import os
from typing import Final

import psutil

from runtime.base.clock import Clock

ENV: Final = "MILLPOND_SUPERVISOR"
_POLL_S: Final = 0.1
_KILL_WAIT_S: Final = 5.0


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes of this user that carry ``mark``, ourselves left out."""
    found = []
    for process in psutil.process_iter():
        # Processes come and go while we look, and those of other users cannot be read: neither is ours.
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(ENV) == mark and _alive(process):
                found.append(process)
    return found


async def end_marked(mark: str, *, clock: Clock, wait_s: float) -> int:
    """Give marked processes ``wait_s`` to end by themselves, then kill them. Return how many had to be killed."""
    deadline = clock.monotonic() + wait_s
    left = marked(mark)
    while left and clock.monotonic() < deadline:
        await clock.sleep(_POLL_S)
        left = [process for process in left if _alive(process)]
        left = left or marked(mark)  # one more look: a child may have been born meanwhile
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    deadline = clock.monotonic() + _KILL_WAIT_S
    while any(_alive(process) for process in left) and clock.monotonic() < deadline:
        await clock.sleep(_POLL_S)
    return len(left)


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False

"""What a child process is given before its program starts: its own session, a parent-death signal, the lifeline.

The parent-death signal is tied to the *thread* that forked, so everything here must be called from the main thread.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from runtime.base import lifeline

_PR_SET_PDEATHSIG: Final = 1
# Loaded before any fork: the child of a threaded process must not take the import lock or the loader's lock.
_LIBC: Final = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def prepare(*, death_signal: signal.Signals, user: tuple[int, int] | None = None) -> Callable[[], None]:
    """Return a ``preexec_fn``: become ``user`` (uid, gid) where given, then ask for ``death_signal``.

    A child whose parent died while it was born ends at once: the signal would never come.
    """
    parent = os.getpid()

    def run() -> None:
        if user is not None:
            uid, gid = user
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)  # clears the parent-death signal: it is set after this
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    return run


def options(
    *,
    death_signal: signal.Signals,
    lifeline_fd: int | None,
    env: Mapping[str, str],
    user: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Return the keyword arguments that every child of the supervisor is started with."""
    child_env = dict(env)
    inherited: tuple[int, ...] = ()
    if lifeline_fd is not None:
        child_env[lifeline.ENV] = str(lifeline_fd)
        inherited = (lifeline_fd,)
    return {
        "env": child_env,
        "pass_fds": inherited,
        "start_new_session": True,  # a Ctrl-C at the terminal reaches the supervisor alone
        "preexec_fn": prepare(death_signal=death_signal, user=user),
    }

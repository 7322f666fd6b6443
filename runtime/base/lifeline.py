"""Die with the supervisor: an inherited pipe whose write end only the supervisor holds.

When the supervisor ends, however it ends, the read end sees EOF in every process that inherited it, engines
included, while the death of a parent in between (an agent that restarts) changes nothing.
"""

import os
import threading
from collections.abc import Callable
from typing import Final

ENV: Final = "MILLPOND_LIFELINE_FD"


def inherited_fd() -> int | None:
    """The read end that this process inherited, or ``None`` outside embedded mode."""
    text = os.environ.get(ENV, "")
    return int(text) if text.isdigit() else None


def watch(on_lost: Callable[[], None] | None = None) -> None:
    """Start a daemon thread that calls ``on_lost`` (default: exit at once) when the supervisor is gone."""
    fd = inherited_fd()
    if fd is None:
        return

    def wait() -> None:
        try:
            while os.read(fd, 1):
                continue
        except OSError:
            return  # the descriptor was not passed on: nothing to watch
        if on_lost is None:
            os._exit(0)
        on_lost()

    threading.Thread(target=wait, name="lifeline", daemon=True).start()

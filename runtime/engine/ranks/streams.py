"""Streams between the processes of one replica: how their end is noticed, whoever or whatever ends them.

The end of a process is told by its kernel at once. A node that is switched off, or a cable that is cut, tells nothing:
an idle stream is asked for by keep-alive, and what was sent must be acknowledged, both within ``SILENCE_SECONDS``.
"""

import select
import socket
import threading
from collections.abc import Callable
from typing import Final

SILENCE_SECONDS: Final = 25
_IDLE_SECONDS: Final = 10
_PROBE_SECONDS: Final = 5
_PROBES: Final = 3


def keep_watch(stream: socket.socket) -> None:
    """Have the kernel end ``stream``, which is TCP, when the other machine is silent for ``SILENCE_SECONDS``."""
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE_SECONDS),
        ("TCP_KEEPINTVL", _PROBE_SECONDS),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", SILENCE_SECONDS * 1000),
    ):
        if hasattr(socket, name):  # not everywhere
            stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def on_end(stream: socket.socket, then: Callable[[], None], name: str) -> None:
    """Call ``then`` in a thread of its own once the other side of ``stream`` is gone; nothing is read from it."""
    watched = select.poll()
    watched.register(stream.fileno(), getattr(select, "POLLRDHUP", 0))  # errors and hang-ups are always told

    def wait() -> None:
        watched.poll()
        then()

    threading.Thread(target=wait, name=name, daemon=True).start()

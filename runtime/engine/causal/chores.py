"""Work that the engine's thread does between steps, when nobody asks for anything: no step can run beside it."""

import concurrent.futures
from collections import deque
from collections.abc import Callable
from typing import Final

MAX_CHORES: Final = 8


class Chores:
    """A short queue. :meth:`add`, :meth:`next` and :meth:`cancel` are called with the engine's lock held."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], None], concurrent.futures.Future[None]]] = deque(maxlen=MAX_CHORES)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, work: Callable[[], None]) -> concurrent.futures.Future[None]:
        """Queue ``work``; the future tells how it went."""
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        if len(self._waiting) == MAX_CHORES:
            self._waiting.popleft()[1].cancel()
        self._waiting.append((work, future))
        return future

    def next(self) -> Callable[[], None]:
        """Take the first one; calling it does the work and settles its future."""
        work, future = self._waiting.popleft()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                work()
            except Exception as exc:  # the boundary to whoever asked: the engine's thread goes on
                future.set_exception(exc)
            else:
                future.set_result(None)

        return run

    def cancel(self) -> None:
        """Nothing of this will be done."""
        while self._waiting:
            self._waiting.popleft()[1].cancel()

"""A stream for logs that never makes its writer wait.

Logs usually go into a pipe. When whoever reads it stands still, the pipe fills after 64 KiB and the next write blocks:
in an event loop that is the end of serving. Here a thread does the writing; what does not fit in the queue is dropped,
counted, and said so once the reader goes on.

The thread writes to the file descriptor and not through Python's stream of it: at the end of the process the
interpreter flushes that stream, and would wait for a lock that the blocked thread holds.
"""

import os
import queue
import threading
from typing import Final

MOST_LINES: Final = 10_000
_TOGETHER: Final = 32_768  # characters in one write


class PatientStream:
    """Writes UTF-8 to ``descriptor``; ``most`` texts wait at one time. Safe for any number of threads."""

    def __init__(self, descriptor: int, most: int = MOST_LINES) -> None:
        self._descriptor = descriptor
        self._waiting: queue.Queue[str] = queue.Queue(most)
        self._dropped = 0
        self._idle = threading.Condition()
        self._unwritten = 0
        threading.Thread(target=self._pass_on, name="log-writer", daemon=True).start()

    def write(self, text: str) -> int:
        """Take ``text``; returns at once whatever the stream does."""
        with self._idle:
            try:
                self._waiting.put_nowait(text)
            except queue.Full:
                self._dropped += 1
            else:
                self._unwritten += 1
        return len(text)

    def flush(self) -> None:
        """Nothing: a handler flushes after every line, and must not wait either. See :meth:`drain`."""

    def drain(self, seconds: float) -> bool:
        """Wait until all is written; false when nothing could be written for ``seconds``. For the end of a process."""
        with self._idle:
            while self._unwritten:
                before = self._unwritten
                if not self._idle.wait_for(lambda: self._unwritten != before, seconds):  # noqa: B023  called at once
                    return False
        return True

    def _pass_on(self) -> None:
        while True:
            texts = self._next()
            with self._idle:
                dropped, self._dropped = self._dropped, 0
            if dropped:
                texts.append(f"{dropped} log lines were dropped: nobody read them in time\n")
            try:
                self._put("".join(texts).encode(errors="backslashreplace"))
            except OSError:
                pass  # the reader is gone for good, or the descriptor is closed: there is nobody left to tell
            finally:
                with self._idle:
                    self._unwritten -= len(texts) - bool(dropped)
                    self._idle.notify_all()

    def _next(self) -> list[str]:
        """Wait for a text; return it with those that wait behind it, about what a pipe takes at once."""
        texts = [self._waiting.get()]
        size = len(texts[0])
        while size < _TOGETHER:
            try:
                texts.append(self._waiting.get_nowait())
            except queue.Empty:
                break
            size += len(texts[-1])
        return texts

    def _put(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]

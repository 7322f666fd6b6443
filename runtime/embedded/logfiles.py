"""Log files that stay small: one per process, rotated by size, readable by their owner alone."""

import os
from collections import deque
from pathlib import Path
from typing import Final

_TAIL_BYTES: Final = 64 * 1024


class RotatingLog:
    """Appends bytes to ``path``; at ``limit`` bytes it becomes ``path.1`` and so on up to ``keep`` old files."""

    def __init__(self, path: Path, *, limit: int = 10 * 1024 * 1024, keep: int = 3) -> None:
        self.path = path
        self._limit = limit
        self._keep = keep
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor = self._open()
        self._size = os.fstat(self._descriptor).st_size
        self._recent: deque[bytes] = deque()
        self._recent_size = 0

    def write(self, data: bytes) -> None:
        """Append ``data``. A disk that is full loses log lines, never the process that wrote them."""
        self._remember(data)
        try:
            if self._size + len(data) > self._limit and self._size:
                self._rotate()
            self._size += os.write(self._descriptor, data)
        except OSError:
            return

    def mark(self) -> None:
        """Forget what was said before: :meth:`tail` begins here."""
        self._recent.clear()
        self._recent_size = 0

    def tail(self, lines: int | None = None) -> str:
        """Return what was said since the last mark (64 KiB at most), or its last ``lines``."""
        text = b"".join(self._recent).decode("utf-8", "replace")
        return text if lines is None else "\n".join(text.rstrip().splitlines()[-lines:])

    def close(self) -> None:
        """Close the file; writes after this are lost."""
        os.close(self._descriptor)
        self._descriptor = -1

    def _remember(self, data: bytes) -> None:
        self._recent.append(data)
        self._recent_size += len(data)
        while self._recent_size > _TAIL_BYTES and len(self._recent) > 1:
            self._recent_size -= len(self._recent.popleft())

    def _rotate(self) -> None:
        for number in range(self._keep - 1, 0, -1):
            older = self.path.with_name(f"{self.path.name}.{number}")
            if older.exists():
                older.replace(self.path.with_name(f"{self.path.name}.{number + 1}"))
        self.path.replace(self.path.with_name(f"{self.path.name}.1"))
        previous, self._descriptor = self._descriptor, self._open()
        os.close(previous)
        self._size = 0

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

"""Usage records on disk until the control plane has booked them.

Append-only segment files of JSON lines. A record is written before the client gets the last byte of its answer, so
that killing the process loses nothing that was answered; lines that wait for it go in one ``write``. ``fsync`` follows
within ``fsync_seconds`` or ``fsync_records`` lines, whichever is first, and that much a power cut may lose. What the
control plane has booked is a position in a file of its own, moved only after its answer. A process never appends to the
segment of an earlier one: a torn last line there stays what it is and is skipped.

Before an engine is asked, a line says what would have to be booked if the process died now (``opened``). A request
whose record never came was cut by that: the next process finds it in :attr:`Journal.cut`. A new segment begins with the
lines of all requests that are still open, so the last two segments of a process always tell.
"""

import asyncio
import os
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from runtime.base import logs
from runtime.gateway.files import write_private
from runtime.gateway.loops import wait_for
from runtime.wire import codec, errors
from runtime.wire.usage import UsageRecord

log = logs.get(__name__)

_MAX_UNWRITTEN: Final = 10_000
_OPENED: Final = b'{"opened":'


class Opened(msgspec.Struct, frozen=True):
    """A line that is no record yet: what a request has come to if no record follows."""

    opened: UsageRecord


class _Named(msgspec.Struct, frozen=True):
    """As much of a record as tells whose it is."""

    id: str


class Position(msgspec.Struct, frozen=True, order=True):
    """A place in the journal: everything before it is booked."""

    segment: int
    offset: int


class Batch(NamedTuple):
    """Records in order, how many lines they took (damaged ones included), and the position behind them."""

    records: list[UsageRecord]
    lines: int
    end: Position


class Journal:
    """One process's hold on the journal folder. Not thread-safe: all calls come from the event loop."""

    def __init__(
        self, folder: Path, *, segment_bytes: int, max_bytes: int, fsync_seconds: float, fsync_records: int
    ) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._max_bytes = max_bytes
        self._fsync_seconds = fsync_seconds
        self._fsync_records = fsync_records
        self._unwritten: deque[bytes] = deque()
        self._torn = False  # the segment may end in a part of a line
        self._unsynced = 0
        self._rolled: deque[int] = deque()  # descriptors of segments that are full, and not yet durable
        self._sync_now = asyncio.Event()
        self.arrived = asyncio.Event()  # set by append: there is something to deliver
        self.pending = 0
        self.skipped = 0  # lines that could not be read: torn or damaged
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._booked = self._load_booked()
        segments = self._segments()
        self._open_lines: dict[str, bytes] = self._still_open(segments[-2:])
        self.cut = [codec.decode(line, Opened).opened for line in self._open_lines.values()]
        self._closed_bytes = sum(self._path(number).stat().st_size for number in segments)
        self.pending = sum(self._count(number) for number in segments if number >= self._booked.segment)
        self._active = max([*segments, self._booked.segment, 0]) + 1
        self._descriptor = self._open(self._active)
        self._size = self._carried = self._carry_over(self._descriptor)
        if self.pending:
            self.arrived.set()

    @property
    def full(self) -> bool:
        """True when no further request may start: its record would have nowhere to go."""
        return self._closed_bytes + self._size >= self._max_bytes or len(self._unwritten) >= _MAX_UNWRITTEN

    def note_open(self, record: UsageRecord, *, soon: bool = False) -> None:
        """Write what ``record`` would be if the process died now; a later note of the same id stands instead.

        ``soon``: :meth:`write_out` will be called before anything follows from it.
        """
        line = _OPENED + codec.encode(record) + b"}\n"
        self._open_lines[record.id] = line
        self._unwritten.append(line)
        if not soon:
            self.write_out()

    def append(self, record: UsageRecord, *, soon: bool = False) -> None:
        """Write ``record``. When the disk refuses, it waits in memory and is tried again; it is never dropped.

        ``soon`` as in :meth:`note_open`.
        """
        self._unwritten.append(codec.encode(record) + b"\n")
        self._open_lines.pop(record.id, None)
        self.pending += 1
        if not soon:
            self.write_out()
        self.arrived.set()

    async def keep_synced(self) -> None:
        """Run until cancelled: make what was appended durable, within the stated bounds."""
        while True:
            await wait_for(self._sync_now, self._fsync_seconds)
            await self.sync()

    async def sync(self) -> None:
        """Make everything appended so far durable."""
        self._sync_now.clear()
        self.write_out()
        while self._rolled:
            await self._sync_and_close(self._rolled.popleft())
        if self._unsynced:
            self._unsynced = 0
            # A copy, because the segment may be rolled (and its descriptor closed) while the thread is at it.
            await self._sync_and_close(os.dup(self._descriptor))

    async def _sync_and_close(self, descriptor: int) -> None:
        try:
            await asyncio.to_thread(os.fsync, descriptor)
        except OSError as exc:
            log.warning("journal not synced", error=str(exc))
        finally:
            os.close(descriptor)

    def read(self, limit: int) -> Batch:
        """Return up to ``limit`` records behind the booked position; no records and the same position when none."""
        position, lines = self._booked, 0
        while True:
            records, seen, position = self._read_segment(position, limit)
            lines += seen
            if records or position.segment >= self._active:
                return Batch(records, lines, position)
            position = Position(min(number for number in self._segments() if number > position.segment), 0)

    async def commit(self, batch: Batch) -> None:
        """Note durably that everything up to ``batch.end`` is booked, and drop segments that are done with."""
        if batch.end == self._booked:
            return
        await asyncio.to_thread(write_private, self._booked_path, msgspec.json.encode(batch.end))
        self._booked = batch.end
        self.pending = max(0, self.pending - batch.lines)
        for number in self._segments():
            if number < self._booked.segment:
                self._closed_bytes -= self._path(number).stat().st_size
                self._path(number).unlink()

    def set_aside(self, record: UsageRecord, why: str) -> None:
        """Keep a record that the control plane will not take where a person can find it."""
        log.error("usage record refused for good; kept in refused.jsonl", record=record.id, error=why)
        with (self._folder / "refused.jsonl").open("ab") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(codec.encode(record) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    async def close(self) -> None:
        """Make everything durable and let go."""
        await self.sync()
        os.close(self._descriptor)
        if self._unwritten:
            log.error("usage records lost: the disk took no more", records=len(self._unwritten))

    # --- writing ---

    def write_out(self) -> None:
        """Write what waits, all lines that fit the segment at once."""
        while self._unwritten:
            try:
                if self._size > self._carried and len(self._unwritten[0]) > self._room:
                    self._roll()
                if self._torn:
                    os.ftruncate(self._descriptor, self._size)
                count, data = self._fitting()
                self._torn = True  # until all of it is known to be there
                written = os.write(self._descriptor, data)
                if written < len(data):
                    raise OSError(f"only {written} of {len(data)} bytes fitted")
                self._torn = False
            except OSError as exc:
                log.warning("journal not written; the record waits in memory", error=str(exc))
                return
            for _ in range(count):
                self._unwritten.popleft()
            self._size += written
            self._unsynced += count
        if self._unsynced >= self._fsync_records:
            self._sync_now.set()

    @property
    def _room(self) -> int:
        """Bytes that the segment may still take; what it began with does not count, or it might never take any."""
        return self._segment_bytes - (self._size - self._carried)

    def _fitting(self) -> tuple[int, bytes]:
        """How many of the lines that wait fit the segment (at least one), and their bytes."""
        if len(self._unwritten) == 1:
            return 1, self._unwritten[0]
        lines: list[bytes] = []
        room = self._room
        for line in self._unwritten:
            room -= len(line)
            if lines and room < 0:
                break
            lines.append(line)
        return len(lines), b"".join(lines)

    def _roll(self) -> None:
        descriptor = self._open(self._active + 1)
        try:
            size = self._carry_over(descriptor)
        except OSError:
            os.close(descriptor)
            self._path(self._active + 1).unlink()
            raise
        self._rolled.append(self._descriptor)  # to be made durable beside the loop: here every request would wait
        self._sync_now.set()
        self._closed_bytes += self._size
        self._descriptor, self._size, self._carried = descriptor, size, size
        self._active += 1

    def _carry_over(self, descriptor: int) -> int:
        """Begin a segment with the lines of requests that are still open; return their bytes."""
        lines = b"".join(self._open_lines.values())
        view = memoryview(lines)
        while view:
            view = view[os.write(descriptor, view) :]
        return len(lines)

    def _open(self, number: int) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        return os.open(self._path(number), flags, 0o600)

    # --- reading ---

    def _read_segment(self, start: Position, limit: int) -> tuple[list[UsageRecord], int, Position]:
        """Up to ``limit`` records of one segment from ``start``, the whole lines seen, and the position behind them."""
        records: list[UsageRecord] = []
        lines, offset, booked = 0, start.offset, start.offset
        try:
            file = self._path(start.segment).open("rb")
        except FileNotFoundError:
            return [], 0, start  # it was done with and removed, or there never was one
        with file:
            file.seek(offset)
            while len(records) < limit:
                line = file.readline()
                if not line.endswith(b"\n"):
                    if line and start.segment < self._active:
                        self._skip(start.segment, offset, "the last line is torn")
                        offset = booked = offset + len(line)
                    break
                if line.startswith(_OPENED):
                    offset += len(line)
                    continue
                lines += 1
                try:
                    records.append(codec.decode(line, UsageRecord))
                except errors.MalformedMessage as exc:
                    self._skip(start.segment, offset, str(exc))
                offset = booked = offset + len(line)
        return records, lines, Position(start.segment, booked)

    def _still_open(self, segments: list[int]) -> dict[str, bytes]:
        """Lines of the requests that were opened in ``segments`` and have no record there."""
        found: dict[str, bytes] = {}
        for number in segments:
            with self._path(number).open("rb") as file:
                for line in file:
                    try:
                        if line.startswith(_OPENED):
                            found[codec.decode(line, Opened).opened.id] = line
                        else:
                            found.pop(codec.decode(line, _Named).id, None)
                    except errors.MalformedMessage:
                        continue  # torn or damaged: counted when it is read to be delivered
        return found

    def _skip(self, segment: int, offset: int, why: str) -> None:
        self.skipped += 1
        log.warning("journal line skipped", segment=segment, offset=offset, error=why)

    def _count(self, number: int) -> int:
        start = self._booked.offset if number == self._booked.segment else 0
        with self._path(number).open("rb") as file:
            file.seek(start)
            return sum(line.endswith(b"\n") and not line.startswith(_OPENED) for line in file)

    def _segments(self) -> list[int]:
        return sorted(int(path.stem.removeprefix("usage-")) for path in self._folder.glob("usage-*.jsonl"))

    def _path(self, number: int) -> Path:
        return self._folder / f"usage-{number:08d}.jsonl"

    @property
    def _booked_path(self) -> Path:
        return self._folder / "booked.json"

    def _load_booked(self) -> Position:
        try:
            return codec.decode(self._booked_path.read_bytes(), Position)
        except FileNotFoundError:
            return Position(0, 0)
        except errors.MalformedMessage as exc:
            # Delivering twice is harmless (records are booked by id); skipping one is not.
            log.warning("booked position unreadable; delivering the whole journal again", error=str(exc))
            return Position(0, 0)

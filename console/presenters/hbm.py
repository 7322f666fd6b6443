"""Geometry of the HBM bar and of the vessel: where each segment, the level line and the watermarks stand.

The order never changes: other, weights, workspace, KV used, level line, KV cached, free. What cannot be taken back
without hurting someone lies below the line; watermarks are compared with the line.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

LOW, HIGH, CRITICAL = 0.75, 0.88, 0.95
SEGMENTS: Final = ("other", "weights", "workspace", "used", "cached")


class Segment(NamedTuple):
    """One filled stretch; ``x`` and ``width`` are percent of the whole."""

    name: str
    x: float
    width: float
    bytes: int

    @property
    def end(self) -> float:
        return round(self.x + self.width, 2)


class Tick(NamedTuple):
    """A watermark below the bar."""

    name: str
    at: float
    crossed: bool


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on a device or on several together. Every field is bytes, marks are fractions of ``total``."""

    total: int
    other: int = 0
    weights: int = 0
    workspace: int = 0
    used: int = 0
    cached: int = 0
    low: float = LOW
    high: float = HIGH
    critical: float = CRITICAL
    peak: float | None = None  # level of the fullest member of an aggregate

    @property
    def level_bytes(self) -> int:
        return self.other + self.weights + self.workspace + self.used

    @property
    def level(self) -> float | None:
        """The level as a fraction; ``None`` when nothing is known."""
        return self.level_bytes / self.total if self.total else None

    @property
    def free(self) -> int:
        return max(0, self.total - self.level_bytes - self.cached)

    @property
    def mood(self) -> str:
        """``""``, ``high`` or ``critical``: which watermark the level has crossed."""
        level = self.level or 0.0
        return "critical" if level >= self.critical else "high" if level >= self.high else ""

    @property
    def peak_mood(self) -> str:
        return "high" if (self.peak or 0.0) >= self.high else ""


def of_ledger(ledger: Any) -> Memory | None:
    """From the memory ledger of a replica, as a mapping or an object; ``None`` where there is none yet."""
    if not ledger:
        return None
    read = ledger.get if isinstance(ledger, Mapping) else lambda name, default=0: getattr(ledger, name, default)
    marks = read("watermarks") or {}
    mark = marks.get if isinstance(marks, Mapping) else lambda name, default=0.0: getattr(marks, name, default)
    return Memory(
        total=int(read("total_bytes", 0) or 0),
        other=int((read("other_bytes", 0) or 0) + (read("context_bytes", 0) or 0)),
        weights=int(read("weights_bytes", 0) or 0),
        workspace=int(read("workspace_bytes", 0) or 0),
        used=int(read("kv_used_bytes", 0) or 0),
        cached=int(read("kv_cached_bytes", 0) or 0),
        low=float(mark("low", LOW) or LOW),
        high=float(mark("high", HIGH) or HIGH),
        critical=float(mark("critical", CRITICAL) or CRITICAL),
    )


def of_need(need: Mapping[str, Any]) -> Memory:
    """From what one replica needs by the estimate. A need is no level, so there is no watermark."""
    return Memory(
        total=int(need.get("total_bytes") or 0),
        other=int(need.get("context_bytes") or 0),
        weights=int(need.get("weights_bytes") or 0),
        workspace=int(need.get("workspace_bytes") or 0),
        used=int(need.get("kv_floor_bytes") or 0),
        high=2.0,
        critical=2.0,
    )


def together(members: Iterable[Memory | None]) -> Memory | None:
    """Several memories as one, with the highest member's level as ``peak``; ``None`` when there is none."""
    known = [member for member in members if member is not None and member.total]
    if not known:
        return None
    sums = {name: sum(getattr(member, name) for member in known) for name in ("total", *SEGMENTS)}
    peak = (max(member.level or 0.0 for member in known) or None) if len(known) > 1 else None
    first = known[0]
    return Memory(**sums, low=first.low, high=first.high, critical=first.critical, peak=peak)


def segments(memory: Memory) -> list[Segment]:
    """Filled stretches from left to right; empty ones are left out."""
    found, x = [], 0.0
    for name in SEGMENTS:
        size = getattr(memory, name)
        width = min(100.0 - x, size / memory.total * 100) if memory.total else 0.0
        if width > 0:
            found.append(Segment(name, round(x, 2), round(width, 2), size))
            x += width
    return found


def ticks(memory: Memory) -> list[Tick]:
    """The three watermarks."""
    level = memory.level or 0.0
    marks = (("low", memory.low), ("high", memory.high), ("critical", memory.critical))
    return [Tick(name, round(at * 100, 2), level >= at) for name, at in marks]


@dataclasses.dataclass(frozen=True)
class Cell:
    """One partition in a vessel: its share of the width, percent, and what it holds (``None`` is empty)."""

    x: float
    width: float
    wall: str  # isolation class of the wall to its left; "" for the first
    rows: list[Segment]
    level: float | None
    mood: str


def cells(parts: Iterable[tuple[int, str, Memory | None]], total: int) -> list[Cell]:
    """Cells of a vessel of ``total`` bytes from (bytes, isolation class, memory); ``rows`` measure from the top."""
    found: list[Cell] = []
    x = 0.0
    for size, isolation, memory in parts:
        width = min(100.0 - x, size / total * 100) if total else 0.0
        rows = [
            Segment(part.name, round(100 - part.x - part.width, 2), part.width, part.bytes)
            for part in (segments(memory) if memory else [])
        ]
        level = memory.level if memory else None
        found.append(
            Cell(
                round(x, 2), round(width, 2), isolation if found else "", rows,
                None if level is None else round(100 - min(level, 1.0) * 100, 2), memory.mood if memory else "",
            )
        )  # fmt: skip
        x += width
    return found

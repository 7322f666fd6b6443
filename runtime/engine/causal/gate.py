"""The watermark gate: whether new sequences are admitted, from the level alone. Pure.

``high`` closes admission, and it opens again only below ``low``. ``critical`` preempts. An engine whose weights alone
stand above a mark would never open again, so the marks are first moved above what it holds when idle.
"""

import dataclasses

from runtime.wire.memory import Watermarks


def effective_marks(marks: Watermarks, idle_level: float) -> Watermarks:
    """Return ``marks`` with ``low`` and ``high`` moved above ``idle_level`` where they are not; ``critical`` stays.

    ``idle_level`` is the level with no sequence running, below ``critical``.
    """
    room = max(0.0, marks.critical - idle_level)
    low = max(marks.low, idle_level + 0.4 * room)
    high = max(marks.high, idle_level + 0.8 * room)
    return Watermarks(low=min(low, high), high=high, critical=marks.critical)


@dataclasses.dataclass(slots=True)
class WatermarkGate:
    """Hysteresis between ``high`` and ``low``."""

    marks: Watermarks
    open: bool = True

    def observe(self, level: float) -> bool:
        """Take note of ``level``; return whether admission is open."""
        if level >= self.marks.high:
            self.open = False
        elif level < self.marks.low:
            self.open = True
        return self.open

    def critical(self, level: float) -> bool:
        """True when running sequences have to give way."""
        return level > self.marks.critical

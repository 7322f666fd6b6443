"""What requests came to that have ended: the last word on their tokens, for whoever missed it. No torch.

A gateway that lost the answer (its client left, its connection broke, it died and came back) asks by request id.
Bounded: the oldest are forgotten first, and with the process all of them.
"""

from collections import OrderedDict
from typing import Final

from runtime.wire.inference import Usage

MOST: Final = 20_000


class EndedBook:
    """Final usage by request id. Not thread-safe: its engine's lock guards it."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._usage: OrderedDict[str, Usage] = OrderedDict()

    def note(self, request_id: str, usage: Usage) -> None:
        """``request_id`` has ended with ``usage``."""
        self._usage[request_id] = usage
        self._usage.move_to_end(request_id)
        if len(self._usage) > self._most:
            self._usage.popitem(last=False)

    def find(self, request_id: str) -> Usage | None:
        """What it came to; ``None`` when it was never here, runs still, or was forgotten."""
        return self._usage.get(request_id)

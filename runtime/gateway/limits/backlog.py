"""What shared counters still have to be told: operations, and their sum while the counters are gone. Pure."""

from collections.abc import Iterable
from typing import Any, Final

from runtime.gateway.limits.window import SLOTS

# An operation as the script reads it; see counters.lua.
Op = list[Any]
RESERVE: Final = 1
APPLY: Final = 2

_MAX_ROWS: Final = 200_000


class Backlog:
    """Merges ``APPLY`` operations: minutes by subject and bucket, spending by budget. Bounded by what still counts.

    What running requests hold is not kept: holders come back under a new name and say anew what they hold.
    """

    def __init__(self) -> None:
        self._minutes: dict[tuple[str, int], list[int]] = {}
        self._spent: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self._minutes) + len(self._spent)

    def add(self, op: Op) -> None:
        """Keep what lasts of ``op``."""
        _, bucket, requests, tokens, _, subjects = op
        for ident, windowed, _, budget in subjects:
            if windowed:
                row = self._minutes.setdefault((ident, bucket), [0, 0])
                row[0] += requests
                row[1] += tokens
            if budget and budget[3]:
                counter, seed, _, used, keep = budget
                kept = self._spent.setdefault(counter, [seed, 0, keep])
                kept[1] += used
        if len(self._minutes) > _MAX_ROWS:
            self.forget(bucket)

    def forget(self, bucket: int) -> None:
        """Drop minutes that no longer count at ``bucket``."""
        self._minutes = {at: row for at, row in self._minutes.items() if at[1] > bucket - SLOTS}

    def take(self) -> list[Op]:
        """Return it all as operations, and be empty."""
        ops: list[Op] = [
            [APPLY, bucket, requests, tokens, "", [[ident, True, 0, False]]]
            for (ident, bucket), (requests, tokens) in self._minutes.items()
            if requests or tokens
        ]
        ops += [
            [APPLY, 0, 0, 0, "", [["", False, 0, [counter, seed, 0, used, keep]]]]
            for counter, (seed, used, keep) in self._spent.items()
        ]
        self._minutes, self._spent = {}, {}
        return ops

    def put_back(self, ops: Iterable[Op]) -> None:
        """Keep operations that could not be sent."""
        for op in ops:
            self.add(op)

"""Why a replica has no place, per device (pure): typed, with the shortage, kept up to date as the board changes."""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Final

from scheduling.bins import Bin
from scheduling.board import Board
from scheduling.feasible import Reason, Verdict, judge
from scheduling.need import Need, need_on

_ORDER: Final = {reason: at for at, reason in enumerate(Reason)}
MAX_KEPT: Final = 64
Nearness = tuple[int, int, str, int, int]


class Verdicts:
    """The verdict on every device for one set of needs."""

    def __init__(self, board: Board, needs: Mapping[str, Need]) -> None:
        self._board = board
        self._needs = needs
        self._rows = [verdicts_of(each, needs) for each in board.bins]
        self._near: dict[int, list[Nearness]] = {}
        self._seen = len(board.changed)
        self.counts: Counter[Reason] = Counter(v.reason for row in self._rows for v in row if v is not None)

    def update(self) -> None:
        """Judge what has changed again."""
        for at in set(self._board.changed[self._seen :]):
            self.counts.subtract(v.reason for v in self._rows[at] if v is not None)
            self._rows[at] = verdicts_of(self._board.bins[at], self._needs)
            self._near.pop(at, None)
            self.counts.update(v.reason for v in self._rows[at] if v is not None)
        self._seen = len(self._board.changed)

    def of(self, bin_at: int, device_at: int) -> Verdict | None:
        """The verdict on one device."""
        return self._rows[bin_at][device_at]

    def nearest(self, count: int) -> list[tuple[int, int]]:
        """The devices that stand nearest to taking it (those that fit before all), as (node, device) positions."""
        return [(at, device) for _order, _short, _uuid, at, device in self._nearest(count)]

    def _nearest(self, count: int) -> list[Nearness]:
        """The nearest are on the nodes whose nearest device is nearest: of the others none is looked at."""
        firsts = [here[0] for at in range(len(self._rows)) if (here := self._of_node(at))]
        chosen = heapq.nsmallest(count, firsts)
        return heapq.nsmallest(count, (each for first in chosen for each in self._of_node(first[3])))

    def _of_node(self, at: int) -> list[Nearness]:
        """The devices of one node, the nearest first; kept until it changes."""
        found = self._near.get(at)
        if found is None:
            devices = self._board.bins[at].devices
            found = self._near[at] = sorted(
                (-1, 0, devices[device].uuid, at, device)
                if verdict is None
                else (_ORDER[verdict.reason], verdict.short_by, devices[device].uuid, at, device)
                for device, verdict in enumerate(self._rows[at])
            )
        return found


class VerdictsByNeeds:
    """The verdicts of a board by needs; the least recently used are forgotten."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._kept: OrderedDict[tuple[tuple[str, Need], ...], Verdicts] = OrderedDict()

    def of(self, needs: Mapping[str, Need]) -> Verdicts:
        """The verdicts for ``needs``, up to date."""
        key = tuple(sorted(needs.items(), key=lambda each: each[0]))
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = Verdicts(self._board, needs)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
            found.update()
        return found


def verdicts_of(each: Bin, needs: Mapping[str, Need]) -> list[Verdict | None]:
    """The verdicts on the devices of one node. Where too few of them can take a group together, that is the verdict."""
    row = [judge(device, each.node, needs) for device in each.devices]
    for need in needs.values():
        if need.devices > 1:
            able = [at for at, v in enumerate(row) if v is None and need_on(each.devices[at], needs) is need]
            groups = Counter(each.devices[at].link_domain if need.linked else "any" for at in able)
            most = max((count for domain, count in groups.items() if domain), default=0)
            if most < need.devices:
                short = Verdict(Reason.NOT_ENOUGH_DEVICES, need.devices - most)
                for at in able:
                    row[at] = short
    return row

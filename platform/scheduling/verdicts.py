"""Why a replica has no place, per device (pure): typed, with the shortage, kept up to date as the board changes."""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Final

from scheduling import together
from scheduling.bins import Bin
from scheduling.board import Board
from scheduling.feasible import Reason, Verdict, is_lasting, judge, lacking, needed
from scheduling.need import Need, need_on
from scheduling.snapshot import DeviceView, NodeView

_ORDER: Final = {reason: 2 * at for at, reason in enumerate(Reason)}
_LASTING: Final = _ORDER[Reason.WRONG_PRODUCT] - 1
#: Sets of needs whose verdicts are kept.
MAX_KEPT: Final = 256
Nearness = tuple[int, int, str, int, int]


def _far(verdict: Verdict, device: DeviceView, node: NodeView) -> int:
    """What nobody's end would change stands behind what may pass, and before what is of the wrong kind."""
    return _LASTING if is_lasting(verdict, device, node) else _ORDER[verdict.reason]


class Verdicts:
    """The verdict on every device for one set of needs."""

    def __init__(self, board: Board, needs: Mapping[str, Need]) -> None:
        self._board = board
        self._judge = _Judge(needs)
        self._rows = [self._judge.row(each) for each in board.bins]
        self._first: dict[int, Nearness] = {}
        self._seen = len(board.changed)
        self.counts: Counter[Reason] = Counter(v.reason for row in self._rows for v in row if v is not None)

    def update(self) -> None:
        """Judge what has changed again."""
        for at in set(self._board.changed[self._seen :]):
            self.counts.subtract(v.reason for v in self._rows[at] if v is not None)
            self._rows[at] = self._judge.row(self._board.bins[at])
            self._first.pop(at, None)
            self.counts.update(v.reason for v in self._rows[at] if v is not None)
        self._seen = len(self._board.changed)

    def of(self, bin_at: int, device_at: int) -> Verdict | None:
        """The verdict on one device."""
        return self._rows[bin_at][device_at]

    def nearest(self, count: int) -> list[tuple[int, int]]:
        """The devices that stand nearest to taking it (those that fit before all), as (node, device) positions."""
        return [(at, device) for _order, _short, _uuid, at, device in self._nearest(count)]

    def _nearest(self, count: int) -> list[Nearness]:
        """The nearest are on the nodes whose nearest device is nearest: of the others only that one is looked at."""
        known = self._first
        if len(known) < len(self._rows):
            for at in range(len(self._rows)):
                if at not in known and (here := self._of_node(at)):
                    known[at] = min(here)
        chosen = heapq.nsmallest(count, known.values())
        return heapq.nsmallest(count, (each for first in chosen for each in self._of_node(first[3])))

    def _of_node(self, at: int) -> list[Nearness]:
        devices, node = self._board.bins[at].devices, self._board.bins[at].node
        return [
            (-1, 0, devices[device].uuid, at, device)
            if verdict is None
            else (_far(verdict, devices[device], node), verdict.short_by, devices[device].uuid, at, device)
            for device, verdict in enumerate(self._rows[at])
        ]


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


class _Judge:
    """``judge`` for many devices: what follows from kind and product alone is found once for each of them."""

    def __init__(self, needs: Mapping[str, Need]) -> None:
        self._needs = needs
        self._known: dict[tuple[str, str, bool], Need | Verdict] = {}
        self._same: dict[Verdict, Verdict] = {}

    def row(self, each: Bin) -> list[Verdict | None]:
        """The verdicts on the devices of one node. Where too few can take a group together, that is the verdict."""
        row = [
            self._usable(device, each.node) if usable else judge(device, each.node, self._needs)
            for device, usable in zip(each.devices, each.usable, strict=True)
        ]
        for need in self._needs.values():
            if need.devices > 1:
                self._together(each, need, row)
        return row

    def _usable(self, device: DeviceView, node: NodeView) -> Verdict | None:
        key = (device.kind, device.product, device.parent != "")
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = needed(device, self._needs)
        if isinstance(found, Verdict):
            return found
        verdict = lacking(device, node, found)
        return None if verdict is None else self._same.setdefault(verdict, verdict)  # kept once: most are alike

    def _together(self, each: Bin, need: Need, row: list[Verdict | None]) -> None:
        able = [at for at, v in enumerate(row) if v is None and need_on(each.devices[at], self._needs) is need]
        most = together.most(Counter(each.devices[at].link_domain for at in able), need)
        if most < need.devices:
            short = Verdict(Reason.NOT_ENOUGH_DEVICES, need.devices - most)
            for at in able:
                row[at] = short

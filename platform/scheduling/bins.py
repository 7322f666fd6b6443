"""A node while a plan is made: what is free of it now, and what each way of using it costs (pure).

The cost of a placement is the worth of the node (``worth``) before it minus after it; between equal costs the node with
the least left over wins (packing), then the first by name. That tie-break is part of the result: with ties broken at
random the same scores lose more than a tenth of the devices.
"""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kernel.isolation import Isolation, Requirement
from scheduling import booking, together
from scheduling.feasible import apart, unusable
from scheduling.need import Need, is_owned
from scheduling.snapshot import DeviceView, Holding, NodeView
from scheduling.worth import WHOLE, Worth

#: Cost of a thousandth of a device that stays free; 16 thousandths of a CPU count as much.
_PACK: Final = 6e-9
_CPU_SHARE: Final = 16
#: Cost of a GPU whose NVLink domain was free with others of the node beside it: less than anything else.
_APART: Final = 1e-9
NEVER: Final = math.inf
_ANY, _MPS = Requirement.ANY.value, Isolation.MPS.value

Tables = Callable[[str, int], Worth]
Option = tuple[float, tuple[int, ...]]
NO_OPTION: Final[Option] = (NEVER, ())


def free_part(device: DeviceView) -> int:
    """Thousandths of the device that can still be given away."""
    if device.exclusive or device.memory_bytes <= 0:
        return 0
    return min(WHOLE * device.free_bytes // device.memory_bytes, device.free_millis)


class Bin:
    """One node: views that are replaced as things are placed, and the worth of what is free."""

    __slots__ = (
        "_build", "_gpus", "_joined", "_known_free", "_known_worth", "_most", "_state", "_tables", "devices", "index",
        "node", "usable",
    )  # fmt: skip

    def __init__(self, index: int, node: NodeView, devices: Sequence[DeviceView], tables: Tables) -> None:
        self.index = index
        self.node = node
        self._state: tuple[object, ...] | None = None
        self._known_free: list[int] | None = None
        self._known_worth: float | None = None
        self._most: dict[str, int] = {}
        self.devices = list(devices)
        self.usable = [unusable(device, node) is None for device in devices]
        self._gpus = [at for at, device in enumerate(devices) if device.kind == "cuda" and self.usable[at]]
        self._joined = len({device.link_domain for device in devices} - {""}) > 1
        self._tables = [tables(device.kind, device.memory_bytes) for device in devices]
        links: dict[str, int] = {}
        self._build = tuple(
            (
                d.kind,
                d.product,
                d.memory_bytes,
                d.millis,
                ok,
                links.setdefault(d.link_domain, len(links)),
                d.link_domain == "",
                d.parent != "",
                d.profile,
                node.mps,
                node.rank_address != "",
            )
            for d, ok in zip(devices, self.usable, strict=True)
        )
        self.refresh()

    def clone(self) -> "Bin":
        """The node as it is now, to try things on."""
        made = copy.copy(self)
        made.devices = list(self.devices)
        return made

    @property
    def free(self) -> list[int]:
        """Thousandths of every device that can still be given away."""
        if self._known_free is None:
            self._known_free = [
                free_part(device) if ok else 0 for device, ok in zip(self.devices, self.usable, strict=True)
            ]
        return self._known_free

    def by_product(self) -> dict[str, int]:
        """Thousandths of its GPUs that can still be given away, by product."""
        found: dict[str, int] = {}
        for at in self._gpus:
            product = self.devices[at].product
            found[product] = found.get(product, 0) + self.free[at]
        return found

    @property
    def worth(self) -> float:
        """The worth of what is free."""
        if self._known_worth is None:
            self._known_worth = self._worth(self.node.free_millicpus, self.free)
        return self._known_worth

    def state(self) -> tuple[object, ...]:
        """Nodes in the same state have the same options."""
        if self._state is None:
            held = tuple(
                (d.held_bytes, d.held_millis, d.exclusive, d.shared, d.shared_as, d.sharers) for d in self.devices
            )
            self._state = (self._build, held, self.node.free_host_bytes, self.node.free_millicpus)
        return self._state

    def refresh(self) -> None:
        """Compute anew what follows from the views."""
        self._state, self._known_free, self._known_worth, self._most = None, None, None, {}
        for device, ok in zip(self.devices, self.usable, strict=True):
            if ok and not device.exclusive:
                left = device.memory_bytes - device.held_bytes
                if left > self._most.get(device.kind, -1):
                    self._most[device.kind] = left

    def _worth(self, millicpus: int, free: Sequence[int]) -> float:
        """The worth of the GPUs with these free parts beside ``millicpus``."""
        if not self._gpus:
            return 0.0
        total, appetite, left = 0.0, 0.0, 0
        whole: dict[Worth, int] = {}
        for at in self._gpus:
            part, table = free[at], self._tables[at]
            total += table.parts(millicpus).of(part)
            appetite += table.appetite[part // 10]
            left += part
            if part == WHOLE:
                whole[table] = whole.get(table, 0) + 1
        for table, count in whole.items():
            total += table.parts(millicpus).gangs(count)
        return total - self._tables[self._gpus[0]].stranded(millicpus, appetite, left)

    # --- ways of using it

    def cheapest(self, need: Need) -> Option:
        """The cheapest way to put one group of ``need`` here: its cost and the devices, or ``NO_OPTION``."""
        fitting = self._fitting(need)
        if len(fitting) < need.devices:
            return NO_OPTION
        if need.devices > 1:
            return self._gang(need, fitting)
        if need.kind == "cuda":
            return self._single(need, fitting)
        return self._beside(need, fitting)

    def can(self, need: Need) -> bool:
        """True when there is a way."""
        fitting = self._fitting(need)
        if need.devices == 1:
            return bool(fitting)
        return together.most({name: len(of) for name, of in self._domains(fitting).items()}, need) >= need.devices

    def _fitting(self, need: Need) -> list[int]:
        """The devices that one of a group could be on; none where the node cannot take the group."""
        node = self.node
        if need.host_bytes > node.free_host_bytes or need.millicpus > node.free_millicpus:
            return []
        if need.memory_bytes > self._most.get(need.kind, -1) or (need.over_nodes and not node.rank_address):
            return []
        fitting = [at for at in range(len(self.devices)) if self.usable[at] and self._fits(self.devices[at], need)]
        if need.least != _ANY or need.profile:
            fitting = [at for at in fitting if apart(self.devices[at], node, need)]
        return fitting

    @staticmethod
    def _fits(device: DeviceView, need: Need) -> bool:
        return (
            device.kind == need.kind
            and not device.exclusive
            and not need.unsupported
            and device.product not in need.besides
            and need.memory_bytes <= device.memory_bytes - device.held_bytes
            and need.millis <= device.millis - device.held_millis
            and (not need.products or device.product in need.products)
            and (device.empty or not ((device.shared_as == _MPS and need.least == _ANY) or is_owned(need, device)))
        )

    def left_part(self, at: int, need: Need) -> int:
        """What would be free of a device after it."""
        device = self.devices[at]
        if is_owned(need, device):
            return 0
        bytes_left = WHOLE * (device.free_bytes - need.memory_bytes) // device.memory_bytes
        return min(bytes_left, device.free_millis - need.millis)

    def _single(self, need: Need, fitting: Sequence[int]) -> Option:
        """One GPU: devices with the same free part are the same; the first of them is tried."""
        cpu = self.node.free_millicpus - need.millicpus
        free, tables, gpus = self.free, self._tables, self._gpus
        if any(tables[at] is not tables[gpus[0]] for at in gpus):
            return self._mixed(need, fitting)
        table = tables[gpus[0]]
        parts, appetite_of = table.parts(cpu), table.appetite
        base, appetite, total, whole = 0.0, 0.0, 0, 0
        for at in gpus:
            part = free[at]
            base += parts.of(part)
            appetite += appetite_of[part // 10]
            total += part
            whole += part == WHOLE
        best, seen = NO_OPTION, set()
        for at in fitting:
            part = free[at]
            left = self.left_part(at, need)
            broken = self._broken(at)
            if (part, left, broken) in seen:
                continue
            seen.add((part, left, broken))
            remaining = base - parts.of(part) + parts.of(left) + parts.gangs(whole - (part == WHOLE))
            hunger = appetite - appetite_of[part // 10] + appetite_of[left // 10]
            remaining -= table.stranded(cpu, hunger, total - part + left)
            cost = self.worth - remaining + _PACK * (total - part + left + cpu / _CPU_SHARE + part / 100)
            cost += _APART * broken
            if cost < best[0]:
                best = (cost, (at,))
        return best

    def _broken(self, at: int) -> int:
        """What is lost of the NVLink domain of a GPU where both are free: pairs and quads stay whole for others."""
        mine = self.devices[at].link_domain
        if not (self._joined and mine and self.free[at] == WHOLE):
            return 0
        beside = sum(
            device.link_domain == mine and part == WHOLE for device, part in zip(self.devices, self.free, strict=True)
        )
        return together.whole(beside) - together.whole(beside - 1)

    def _mixed(self, need: Need, fitting: Sequence[int]) -> Option:
        return min((self._cost(need, (at,)) for at in fitting), default=NO_OPTION)

    def _gang(self, need: Need, fitting: Sequence[int]) -> Option:
        """Several devices: those of each NVLink domain where they must be in one, else of the node."""
        chosen = together.sets(self._domains(fitting), need, self.free)
        return min((self._cost(need, members) for members in chosen), default=NO_OPTION)

    def _domains(self, fitting: Sequence[int]) -> dict[str, list[int]]:
        """Devices by NVLink domain; those without are under ""."""
        found: dict[str, list[int]] = {}
        for at in fitting:
            found.setdefault(self.devices[at].link_domain, []).append(at)
        return found

    def _beside(self, need: Need, fitting: Sequence[int]) -> Option:
        """Work on a CPU, which takes CPU from the GPUs of the node, or on a simulated GPU."""
        cpu = self.node.free_millicpus - need.millicpus
        lost = self.worth - self._worth(cpu, self.free) if self._gpus else 0.0
        at = min(fitting, key=lambda each: (self.left_part(each, need), self._broken(each), each))
        return lost + _PACK * (self.left_part(at, need) + cpu / _CPU_SHARE), (at,)

    def _cost(self, need: Need, chosen: tuple[int, ...]) -> Option:
        free = list(self.free)
        for at in chosen:
            free[at] = self.left_part(at, need)
        cpu = self.node.free_millicpus - need.millicpus
        leftover = sum(free[at] for at in self._gpus) + cpu / _CPU_SHARE
        cost = self.worth - self._worth(cpu, free) + _PACK * leftover
        return cost + (_APART * self._broken(chosen[0]) if len(chosen) == 1 else 0.0), chosen

    # --- using it

    def take(self, need: Need, chosen: Sequence[int]) -> None:
        """Book one group of ``need`` on the devices ``chosen``."""
        for at in chosen:
            self.devices[at] = booking.device_with(self.devices[at], need)
        self.node = booking.node_with(self.node, need)
        self.refresh()

    def release(self, holdings: Sequence[tuple[int, Holding]]) -> None:
        """Take off again what a replica has of these devices. Host memory comes back as far as it was in use."""
        self._off(holdings)
        self._account(holdings, -1)

    def put_back(
        self, holdings: Sequence[tuple[int, Holding]], before: "Bin", off: Iterable[tuple[int, Holding]]
    ) -> None:
        """Undo the release of these; ``before`` is the node before any, ``off`` what stays released."""
        touched = {at for at, _holding in holdings}
        for at in touched:
            self.devices[at] = before.devices[at]
        self._off([each for each in off if each[0] in touched])
        self._account(holdings, 1)

    def _off(self, holdings: Sequence[tuple[int, Holding]]) -> None:
        for at, holding in holdings:
            self.devices[at] = booking.device_without(self.devices[at], holding)

    def _account(self, holdings: Sequence[tuple[int, Holding]], sign: int) -> None:
        self.node = booking.node_without(self.node, (holding for _at, holding in holdings), sign)
        self.refresh()

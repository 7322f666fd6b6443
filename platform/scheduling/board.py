"""The fleet while a plan is made (pure): what is taken is gone for the next; only changed nodes are scored again."""

import dataclasses
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from scheduling.bins import NEVER, NO_OPTION, Bin, Option
from scheduling.demand import NO_DEMAND, Demand
from scheduling.need import Need
from scheduling.scarcity import Costs, Scarcity
from scheduling.snapshot import DeviceView, HolderView, Holding, NodeView, Snapshot
from scheduling.worth import Worth, table_of

#: Shapes of requests whose scores are kept.
MAX_KEPT: Final = 256


class Spot(NamedTuple):
    """One group of a replica: a node and devices of it, by position."""

    bin: int
    devices: tuple[int, ...]


class Board:
    """A mutable copy of a snapshot. Nodes are ordered by name and id, devices as in the snapshot."""

    def __init__(self, snapshot: Snapshot, demand: Demand = NO_DEMAND) -> None:
        self._demand = demand
        by_node: dict[uuid.UUID, list[DeviceView]] = {}
        for device in snapshot.devices:
            by_node.setdefault(device.node_id, []).append(device)
        ordered = sorted(snapshot.nodes.values(), key=lambda node: (node.name, node.id))
        self.bins = [Bin(at, node, by_node.get(node.id, ()), self._table) for at, node in enumerate(ordered)]
        self.position = {node.id: at for at, node in enumerate(ordered)}
        self.device_position = {
            device.id: (each.index, at) for each in self.bins for at, device in enumerate(each.devices)
        }
        self.device_count = len(self.device_position)
        self.products = frozenset(device.product for device in snapshot.devices)
        self.changed: list[int] = []
        self._scores: OrderedDict[Need, _Scores] = OrderedDict()
        self._scarcity: tuple[Scarcity, int] | None = None
        self.replicas: dict[uuid.UUID, dict[int, int]] = {}
        for each in self.bins:
            for deployment, count in each.node.replicas.items():
                self.replicas.setdefault(deployment, {})[each.index] = count

    def _table(self, kind: str, memory_bytes: int) -> Worth:
        return table_of(self._demand, kind, memory_bytes)

    def learn(self, demand: Demand) -> None:
        """Judge by another mix from now on."""
        self._demand = demand
        self._scores.clear()
        self._scarcity = None
        self.bins = [Bin(each.index, each.node, each.devices, self._table) for each in self.bins]

    def scores(self, need: Need) -> "_Scores":
        """The cheapest use of every node for one group of ``need``, up to date."""
        found = self._scores.get(need)
        if found is None:
            found = self._scores[need] = _Scores(need, self.bins, len(self.changed))
            if len(self._scores) > MAX_KEPT:
                self._scores.popitem(last=False)
        else:
            self._scores.move_to_end(need)
            found.update(self.bins, self.changed)
        return found

    def scarcity(self) -> Scarcity:
        """What is free by product, up to date."""
        if self._scarcity is None:
            self._scarcity = Scarcity(self._demand, self.bins), len(self.changed)
        found, seen = self._scarcity
        if seen < len(self.changed):
            found.update(self.bins, self.changed[seen:])
            self._scarcity = found, len(self.changed)
        return found

    # --- booking

    def take(self, spot: Spot, need: Need, deployment: uuid.UUID | None = None) -> None:
        """Book one group of ``need``."""
        self.bins[spot.bin].take(need, spot.devices)
        self.changed.append(spot.bin)
        if deployment is not None:
            counts = self.replicas.setdefault(deployment, {})
            counts[spot.bin] = counts.get(spot.bin, 0) + 1

    def release(self, at: int, holder: HolderView) -> None:
        """Take what ``holder`` has off one node."""
        self.bins[at].release(self.parts(at, holder))
        self.changed.append(at)

    def parts(self, at: int, holder: HolderView) -> list[tuple[int, Holding]]:
        """What ``holder`` has of the devices of one node, by position."""
        here = [(self.device_position.get(each.device_id, (-1, -1)), each) for each in holder.holdings]
        return [(device, each) for (on, device), each in here if on == at]

    def views(self, bins: Iterable[int]) -> dict[int, tuple[NodeView, list[DeviceView]]]:
        """What stands in these nodes now, to be put back by :meth:`restore`."""
        return {at: (self.bins[at].node, list(self.bins[at].devices)) for at in bins}

    def restore(self, views: Mapping[int, tuple[NodeView, Sequence[DeviceView]]]) -> None:
        """Put nodes back, or in another state."""
        for at, (node, devices) in views.items():
            self.bins[at].node = node
            self.bins[at].devices = list(devices)
            self.bins[at].refresh()
            self.changed.append(at)


class _Scores:
    """Per node the cheapest use for one need; ``costs`` is what is searched."""

    __slots__ = ("_by_product", "_need", "_seen", "costs", "options")

    def __init__(self, need: Need, bins: Sequence[Bin], seen: int) -> None:
        self._need = need
        self._seen = seen
        self.options: list[Option] = self._first(bins)
        self.costs = [option[0] for option in self.options]
        self._by_product: dict[int, list[Option]] = {}

    def _first(self, bins: Sequence[Bin]) -> list[Option]:
        """Nodes in the same state have the same answer: a fresh fleet has few states."""
        known: dict[tuple[object, ...], Option] = {}
        found = []
        for each in bins:
            state = each.state()
            option = known.get(state)
            if option is None:
                option = known[state] = each.cheapest(self._need)
            found.append(option)
        return found

    def update(self, bins: Sequence[Bin], changed: Sequence[int]) -> None:
        """Score again what has changed since the last time."""
        for at in set(changed[self._seen :]):
            option = bins[at].cheapest(self._need)
            self.options[at] = option
            self.costs[at] = option[0]
            self._by_product.pop(at, None)
        self._seen = len(changed)

    def best(self, skip: Mapping[int, object]) -> tuple[float, int]:
        """The lowest cost and its node, the first of equals, leaving out ``skip``; ``(NEVER, -1)``: none."""
        costs = self.costs
        if not costs:
            return NEVER, -1
        cost = min(costs)
        at = costs.index(cost)
        if at in skip:
            cost, at = min(((c, i) for i, c in enumerate(costs) if i not in skip), default=(NEVER, -1))
        return (cost, at) if cost < NEVER else (NEVER, -1)

    def with_scarcity(self, each: Bin, costs: Costs) -> Option:
        """The cheapest use of one node, where every product has costs of its own beside."""
        options = [self.options[each.index]]
        products = each.by_product() if costs and options[0][0] < NEVER else {}
        if len(products) > 1:
            if each.index not in self._by_product:
                of = [dataclasses.replace(self._need, products=frozenset({name})) for name in sorted(products)]
                self._by_product[each.index] = [each.cheapest(one) for one in of if _may(self._need, one)]
            options += self._by_product[each.index]
        return min((option[0] + _beside(each, option[1], costs), option[1]) for option in options)

    def best_with_scarcity(
        self, bins: Sequence[Bin], scarcity: Scarcity, costs: Costs, skip: Mapping[int, object]
    ) -> tuple[float, int]:
        """As :meth:`best`, where every product has costs of its own beside."""
        cost, at = self.best(skip)
        if at < 0 or not _beside(bins[at], self.options[at][1], costs):
            return cost, at  # nothing is ever taken off a cost
        found = NEVER, -1
        for group in scarcity.groups:
            here = group.pick(self.costs)
            beside, least = costs.get(group.product, 0.0), min(here)
            at = group.bins[here.index(least)]
            if at in skip and least + beside <= found[0]:
                allowed = ((cost, at) for cost, at in zip(here, group.bins, strict=True) if at not in skip)
                least, at = min(allowed, default=(NEVER, -1))
            found = min(found, (least + beside, at))
        for at in scarcity.mixed:
            if at not in skip:
                found = min(found, (self.with_scarcity(bins[at], costs)[0], at))
        return found if found[0] < NEVER else (NEVER, -1)


def _may(need: Need, narrowed: Need) -> bool:
    return not need.products or narrowed.products <= need.products


def _beside(each: Bin, devices: Sequence[int], costs: Costs) -> float:
    """What a group on these devices costs beside; of several products, their mean."""
    return sum(costs.get(each.devices[at].product, 0.0) for at in devices) / len(devices) if devices else 0.0


__all__ = ["MAX_KEPT", "NO_OPTION", "Board", "Spot"]

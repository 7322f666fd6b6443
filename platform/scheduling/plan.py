"""The plan (pure): for each replica that waits, a place for all its ranks or a refusal per device.

Same snapshot, same demand, same asks: same plan.
"""

import dataclasses
import itertools
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from scheduling import rank, relief, stages
from scheduling.allowances import Allowances
from scheduling.answers import Answer, Ask, Candidate, Place
from scheduling.bins import NEVER
from scheduling.board import Board, Spot
from scheduling.crossing import as_placed
from scheduling.demand import NO_DEMAND, Demand
from scheduling.feasible import explain
from scheduling.holders import Holders
from scheduling.need import Need, charge
from scheduling.snapshot import Snapshot
from scheduling.verdicts import Verdicts, VerdictsByNeeds

#: Verdicts written out per answer.
MAX_CANDIDATES: Final = 50
#: In a fleet of at most so many devices every answer says what it thought of each; in a larger one refusals do.
SMALL_FLEET: Final = 64
#: Replicas that may have to give way in one plan; the next looks again. One that needs more goes alone, up to
#: ``relief.MAX_FOR_ONE``.
MAX_VICTIMS: Final = 16

_Kind = tuple[uuid.UUID | None, int, tuple[tuple[str, Need], ...]]
#: Asks of a tenant by priority, the highest first, and deployment, each with where it stands in the order of asking.
_Lines = dict[tuple[int, uuid.UUID], deque[tuple[int, Ask]]]


class Planner:
    """Answers asks one by one; what one takes is gone for the next."""

    def __init__(self, snapshot: Snapshot, demand: Demand = NO_DEMAND) -> None:
        self.board = Board(snapshot, demand)
        self._verdicts = VerdictsByNeeds(self.board)
        self._holders = Holders(self.board, snapshot.holders)
        self.allowed = Allowances(snapshot)
        self._hopeless: set[_Kind] = set()
        self._in_the_way: dict[uuid.UUID, bool] = {}
        self._victims = 0

    def decide(self, ask: Ask, *, explained: bool = False) -> Answer:
        """A place for every rank of ``ask``, booked on the board, or the reasons why there is none.

        ``explained`` asks for the verdicts on the devices also where there is a place.
        """
        affordable, over = self.allowed.affordable(ask)
        shown = explained or self.board.device_count <= SMALL_FLEET
        before = self._shown(ask) if shown else ((), {})
        for need in self._in_turn(affordable, ask):
            spots = self._spots(need, ask)
            if spots:
                places = self._places(spots, need)
                charged = sum(charge(need, place.device) for place in places)
                self.allowed.book(ask, (need.total_bytes, charged))
                return Answer(ask, places, as_placed(need, places), before[0], before[1])
        candidates, refused = before if shown else self._shown(ask)
        found = self._relief(ask, affordable)
        if affordable and found is not None:
            over = ""  # there will be room on what quota allows
        lines = {} if over and found is None else self._holders.lines_of(ask.tenant_id)
        return Answer(ask, (), None, candidates, refused, lines, over_quota=over, relief=found)

    def _in_turn(self, needs: Sequence[Need], ask: Ask) -> Iterator[Need]:
        """The better kind first; where products of a kind need different amounts, the one that costs least."""
        for _kind, group in itertools.groupby(needs, key=lambda need: need.kind):
            members = list(group)
            alike = [need for need in members if need.choice is None and need.stages == 1]
            if len(alike) > 1:
                cheapest = min(alike, key=lambda need: self._cost(need, ask))
                members = [cheapest, *(need for need in members if need is not cheapest)]
            yield from members

    def _cost(self, need: Need, ask: Ask) -> float:
        spot = rank.best(self.board, need, _wish(ask))
        return NEVER if spot is None else rank.cost(self.board, need, spot)

    def _spots(self, need: Need, ask: Ask) -> list[Spot]:
        """Groups for all stages, booked; nothing is booked when one of them finds none."""
        wish = _wish(ask)
        if need.stages == 1:
            spot = rank.best(self.board, need, wish)
            if spot is None:
                return []
            self.board.take(spot, need, ask.deployment_id)
            return [spot]
        for product in stages.products(self.board, need):
            spots = stages.place(self.board, need, wish, product)
            if spots:
                return spots
        return []

    def _places(self, spots: Sequence[Spot], need: Need) -> tuple[Place, ...]:
        """The ranks in order; the first of a group carries what does not divide evenly."""
        found: list[Place] = []
        for stage, spot in enumerate(spots):
            each = self.board.bins[spot.bin]
            host, cpu = need.host_bytes // need.devices, need.millicpus // need.devices
            for position, device in enumerate(spot.devices):
                first = position == 0
                found.append(
                    Place(
                        rank=len(found),
                        stage=stage,
                        node=each.node,
                        device=each.devices[device],
                        host_bytes=need.host_bytes - host * (need.devices - 1) if first else host,
                        millicpus=need.millicpus - cpu * (need.devices - 1) if first else cpu,
                    )
                )
        return tuple(found)

    # --- why not

    def _shown(self, ask: Ask) -> tuple[tuple[Candidate, ...], Mapping[str, int]]:
        verdicts = self._verdicts.of(ask.needs)
        refused = {reason.value: count for reason, count in verdicts.counts.items() if count}
        return tuple(self._candidates(verdicts, ask)), refused

    def _candidates(self, verdicts: Verdicts, ask: Ask) -> list[Candidate]:
        found = []
        for at, position in verdicts.nearest(MAX_CANDIDATES):
            node, device = self.board.bins[at].node, self.board.bins[at].devices[position]
            verdict = verdicts.of(at, position)
            refusal = None if verdict is None else explain(verdict, device, node, ask.needs)
            found.append(Candidate(device, node, refusal))
        return found

    def _relief(self, ask: Ask, affordable: Sequence[Need]) -> relief.Relief | None:
        """Who has to go for ``ask``, by what quota allows; what they leave is kept for it."""
        found = self._who_goes(ask, affordable)
        if found is None:
            return None
        self._victims += len(found.replica_ids)
        self._holders.go(each for each in (*found.victims, *found.waits) if each not in found.for_group)
        if found.for_group:  # their room is nobody's yet: it may be what another waits for
            self._holders.end(found.for_group)
            self._hopeless.clear()
        relief.reserve(self.board, found)
        self.allowed.promise(ask, found.asks, found.victims, found.evicts)
        return found

    def _who_goes(self, ask: Ask, affordable: Sequence[Need]) -> relief.Relief | None:
        """What helps none of a kind helps none later: a plan only makes less free."""
        claimed = self.allowed.claimed(ask, affordable)
        needs = {str(at): need for at, need in enumerate((*affordable, *claimed))}
        kind = (ask.tenant_id, ask.priority, tuple(sorted(ask.needs.items(), key=lambda each: each[0])))
        if not self._holders or not needs or kind in self._hopeless:
            return None
        spent = self._victims >= MAX_VICTIMS
        group = self.allowed.group_of(ask) if claimed else None
        asked = dataclasses.replace(ask, needs=needs)
        found = relief.find(self.board, asked, self._holders, self.allowed.tenants, group=group, wait_only=spent)
        if found is None or (self._victims and self._victims + len(found.replica_ids) > MAX_VICTIMS):
            self._hopeless.add(kind)
            return None
        return found

    def turn(self, at: int, ask: Ask, behind: Iterable[Ask], *, promised: bool) -> tuple[int, bool, int, float, int]:
        """The least is answered next; ``at``: where ``ask`` stands in the order of asking.

        ``promised``: others end already for something of its tenant, which goes before all as far as nobody can take
        back what it gets. One that is refused whenever its turn comes keeps none ``behind`` it waiting for what is
        guaranteed.
        """
        if promised and self.allowed.keeps(ask):
            return 0, False, -ask.priority, 0.0, at
        above, share = self.allowed.standing(ask)
        if above and ask.replica_id not in self._in_the_way:
            self._in_the_way[ask.replica_id] = any(
                not self.allowed.standing(each)[0] for each in behind
            ) and self._stuck(ask)
        if self._in_the_way.get(ask.replica_id):
            above = 0
        return above, True, -ask.priority, share, at

    def _stuck(self, ask: Ask) -> bool:
        """True when there is neither a place for it nor anybody who may go for it."""
        affordable, _over = self.allowed.affordable(ask)
        room = any(
            rank.best(self.board, need, _wish(ask)) is not None
            if need.stages == 1
            else any(stages.look(self.board, need, _wish(ask), each) for each in stages.products(self.board, need))
            for need in affordable
        )
        return not room and self._who_goes(ask, affordable) is None


def plan(
    snapshot: Snapshot, asks: Sequence[Ask], demand: Demand = NO_DEMAND, *, explained: bool = False
) -> list[Answer]:
    """Answer each ask: within a tenant higher priorities first, and of one priority what is guaranteed; of the first
    ones of all tenants those within their guarantee, then higher priorities, then by weight, else in order.

    What is guaranteed goes before what others would borrow, however important that is to them: else what was made room
    for would be theirs again. So a tenant that others make room for, and that holds less than is guaranteed to it,
    goes before all until it has that. ``explained``: the verdicts on the devices also where there is a place.
    """
    planner = Planner(snapshot, demand)
    answers: list[Answer] = []
    tenants: dict[uuid.UUID | None, _Lines] = {}
    for at, ask in sorted(enumerate(asks), key=lambda each: (-each[1].priority, each[0])):
        lines = tenants.setdefault(ask.tenant_id, {})
        lines.setdefault((ask.priority, ask.deployment_id), deque()).append((at, ask))
    promised = Counter(ask.tenant_id for ask in asks if ask.making_room)
    while tenants:
        firsts = {tenant: _first(planner, lines) for tenant, lines in tenants.items()}
        turns = {
            tenant: planner.turn(*first, _heads(tenants[tenant]), promised=bool(promised[tenant]))
            for tenant, first in firsts.items()
        }
        tenant = min(turns, key=lambda key: turns[key])
        line = (firsts[tenant][1].priority, firsts[tenant][1].deployment_id)
        _at, ask = tenants[tenant][line].popleft()
        promised[tenant] -= ask.making_room
        answers.append(planner.decide(ask, explained=explained))
        if not tenants[tenant][line]:
            del tenants[tenant][line]
        if not tenants[tenant]:
            del tenants[tenant]
    return answers


def _heads(lines: _Lines) -> list[Ask]:
    return [line[0][1] for line in lines.values()]


def _first(planner: Planner, lines: _Lines) -> tuple[int, Ask]:
    """Of a tenant, by its lines of asks: of the highest priority what is guaranteed, then what was asked for first."""
    highest, _deployment = next(iter(lines))
    able = [line[0] for (priority, _key), line in lines.items() if priority == highest]
    return min(able, key=lambda each: (planner.allowed.standing(each[1])[0], each[0])) if len(able) > 1 else able[0]


def _wish(ask: Ask) -> rank.Wish:
    return rank.Wish(ask.deployment_id, ask.desired, ask.files, ask.avoid)

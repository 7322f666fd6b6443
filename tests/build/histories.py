"""A fleet in memory with the checks of the database, and random histories of it for the planner."""

import dataclasses
import random
import uuid
from collections import Counter

from fleet.states import DeviceState, NodeState
from scheduling.answers import Answer, Ask
from scheduling.demand import NO_DEMAND, Demand, Shape
from scheduling.feasible import refuse
from scheduling.need import Need
from scheduling.plan import MAX_VICTIMS, plan
from scheduling.relief import MAX_FOR_ONE
from scheduling.snapshot import UNLIMITED, DeviceView, HolderView, NodeView, Snapshot
from tests.build.leaving import Leaving
from tests.build.memory_fleet import Gone, Part, Replica

GIB = 1024**3
PRODUCTS = {"H100": 80, "L40S": 48}
MAX_NODES = 8
MAX_REPLICAS = 60
LEASE_SECONDS = 45
CALM_CYCLES = 20


class History(Leaving):
    """Random steps with a planning cycle after each; ``broken`` counts what must never be.

    ``drains``: who gives way holds its place for a cycle or two more, as engines do that finish their requests.
    ``follows``: whoever must leave a place stays until a successor has one, as the serving loop does it.
    ``spread`` is the share of GPU replicas that want two groups of devices, on one node or on two. ``grouped``: two of
    the tenants are in a group, and who drains counts until it has ended.
    """

    def __init__(
        self, seed: int, *, drains: bool = False, follows: bool = False, spread: float = 0.1, grouped: bool = False
    ) -> None:
        self.grouped = grouped
        self.draw_group = random.Random(seed)  # its own: other histories are what they were
        self.drains = drains
        self.follows = follows
        self.spread = spread
        super().__init__()
        self.draw = random.Random(seed)
        self.silent: dict[uuid.UUID, int] = {}
        self.tenants = [self.new_id() for _ in range(3)]
        self.deployments: list[tuple[uuid.UUID, uuid.UUID, Need, int]] = []
        self.past: Counter[Shape] = Counter()
        self.demand = NO_DEMAND
        self.broken: Counter[str] = Counter()
        self.first_wrong = ""
        for tenant in self.tenants:
            self.fleet.limits[tenant] = self._quota()
        self._regroup()
        for _ in range(2):
            self.join()

    def _quota(self) -> tuple[int, int]:
        guaranteed = self.draw.choice([0, 80, 160, 320]) * GIB
        return guaranteed, self.draw.choice([UNLIMITED, guaranteed + self.draw.choice([0, 80, 400]) * GIB])

    def _regroup(self) -> None:
        """A group holds at least what is guaranteed in it."""
        if self.grouped:
            members = frozenset(self.tenants[:2])
            firm = sum(self.fleet.limits[member][0] for member in members)
            limit = firm + self.draw_group.choice([0, 0, 40, 160]) * GIB
            self.fleet.group = (uuid.UUID(int=2**64), members, limit)

    def run(self, steps: int) -> None:
        """That many disturbances, then quiet until everything that can is placed."""
        moves = [
            self.join, self.lose, self.come_back, self.sicken, self.heal, self.cut, self.deploy, self.deploy,
            self.deploy, self.end, self.requota, self.cordon, self.squeeze,
        ]  # fmt: skip
        moves += [self.drain] if self.follows else []
        for _ in range(steps):
            self.now += self.draw.randrange(1, 30)
            self.draw.choice(moves)()
            self.cycle()
            self.check()
        for _ in range(CALM_CYCLES):
            self.now += 60
            before = self._doings()
            self.cycle(calm=True)
            self.check()
            leaving = any(replica.leaving for replica in self.replicas.values())
            if not leaving and before == self._doings():
                break
        else:
            self._wrong("never comes to rest", f"after {CALM_CYCLES} quiet cycles")
        self.check_settled()

    def _doings(self) -> list[int]:
        return [count for what, count in sorted(self.seen.items()) if what.startswith(("evicted", "moved", "placed"))]

    # --- what happens

    def join(self) -> None:
        """A node with GPUs of one product and a CPU."""
        if len(self.fleet.nodes) >= MAX_NODES:
            return
        number = self.new_id()
        product = self.draw.choice(list(PRODUCTS))
        node = NodeView(
            id=number, name=f"n{number.int:04}", state="ready", memory_bytes=256 * GIB,
            memory_available_bytes=self.draw.choice([256, 200]) * GIB, held_host_bytes=0,
            millicpus=self.draw.choice([16_000, 64_000]), held_millicpus=0,
            fault_domain=self.draw.choice(["", "rack-a", "rack-b"]),
        )  # fmt: skip
        self.fleet.nodes[node.id] = node
        for slot in range(self.draw.choice([1, 2, 4])):
            self._device(node, "cuda", product, PRODUCTS[product] * GIB, f"{node.name}-{slot // 2}")
        self._device(node, "cpu", "CPU", 64 * GIB, "")
        self.seen["nodes joined"] += 1

    def _device(self, node: NodeView, kind: str, product: str, memory: int, domain: str, parent: str = "") -> None:
        number = self.new_id()
        self.fleet.devices[number] = DeviceView(
            id=number, node_id=node.id, uuid=f"{kind}-{number.int:05}", kind=kind, product=product, state="healthy",
            message="", present=True, memory_bytes=memory, held_bytes=0, link_domain=domain, parent=parent,
        )  # fmt: skip

    def lose(self) -> None:
        """A node falls silent; after its lease it is lost, and what it holds stays taken."""
        node = self._some_node("ready")
        if node is not None:
            self.silent[node.id] = self.now
            self.seen["nodes silent"] += 1

    def come_back(self) -> None:
        """A silent or lost node reports: it is what it was, and knows what it runs."""
        if self.silent:
            node_id = self.draw.choice(sorted(self.silent))
            del self.silent[node_id]
            node = self.fleet.nodes[node_id]
            self.fleet.nodes[node_id] = dataclasses.replace(node, state=NodeState.READY.value)
            self.seen["nodes back"] += 1

    def cordon(self) -> None:
        """Or the other way round."""
        node = self._some_node(self.draw.choice(["ready", "cordoned", *["draining"] * self.follows]))
        if node is not None and node.id not in self.silent:
            state = "cordoned" if node.state == "ready" else "ready"
            self.fleet.nodes[node.id] = dataclasses.replace(node, state=state)

    def drain(self) -> None:
        """What runs on a node is to leave it."""
        node = self._some_node("ready")
        if node is not None and node.id not in self.silent:
            self.fleet.nodes[node.id] = dataclasses.replace(node, state=NodeState.DRAINING.value)
            self.seen["nodes drained"] += 1

    def squeeze(self) -> None:
        """Somebody else uses host memory of a node, or stops."""
        node = self._some_node("ready")
        if node is not None:
            free = self.draw.choice([20, 100, 200, 256]) * GIB
            self.fleet.nodes[node.id] = dataclasses.replace(node, memory_available_bytes=free)

    def sicken(self) -> None:
        """A device is quarantined; its replicas leave it, or start over elsewhere on a new generation."""
        device = self.draw.choice(list(self.fleet.devices.values()))
        state = DeviceState.QUARANTINED.value
        self.fleet.devices[device.id] = dataclasses.replace(device, state=state, message="Xid 79")
        for replica in list(self.replicas.values()) if not self.follows else []:
            if any(key[0] == replica.id and part.device == device.id for key, part in self.fleet.parts.items()):
                self.start_over(replica)
        self.seen["devices sick"] += 1

    def heal(self) -> None:
        """All devices are well again."""
        for device in list(self.fleet.devices.values()):
            self.fleet.devices[device.id] = dataclasses.replace(device, state="healthy", message="")

    def cut(self) -> None:
        """An idle GPU is cut into instances, or idle instances become the GPU again."""
        held = {part.device for part in self.fleet.parts.values()}
        device = self.draw.choice(list(self.fleet.devices.values()))
        node = self.fleet.nodes[device.node_id]
        if device.kind != "cuda" or device.id in held:
            return
        if not device.parent:
            del self.fleet.devices[device.id]
            for gib in self.draw.choice([(40, 20, 20), (40, 40), (20, 20, 20, 20)]):
                share = gib * PRODUCTS[device.product] // 80
                self._device(node, "cuda", f"{device.product} MIG", share * GIB, "", parent=device.uuid)
            self.seen["GPUs cut"] += 1
            return
        parts = [each for each in self.fleet.devices.values() if each.parent == device.parent]
        if not any(each.id in held for each in parts):
            for each in parts:
                del self.fleet.devices[each.id]
            product = device.product.removesuffix(" MIG")
            self._device(node, "cuda", product, PRODUCTS[product] * GIB, f"{node.name}-x")

    def deploy(self) -> None:
        """A new deployment with some replicas, or more of an old one."""
        if len(self.replicas) >= MAX_REPLICAS:
            return
        if not self.deployments or self.draw.random() < 0.6:
            self.deployments.append(
                (self.new_id(), self.draw.choice(self.tenants), self._need(), self.draw.randrange(3))
            )
        deployment, tenant, need, priority = self.draw.choice(self.deployments)
        for _ in range(self.draw.randrange(1, 5)):
            replica = Replica(self.new_id(), tenant, deployment, need, priority, waits_since=self.now)
            self.replicas[replica.id] = replica
        self.seen["replicas asked for"] += 1

    def _need(self) -> Need:
        kind = self.draw.choice(["cuda", "cuda", "cuda", "cpu"])
        devices = self.draw.choice([1, 1, 1, 2, 4]) if kind == "cuda" else 1
        return Need(
            kind=kind, memory_bytes=self.draw.choice([4, 9, 18, 36, 70]) * GIB,
            host_bytes=self.draw.choice([2, 8, 32]) * GIB * devices, millicpus=self.draw.choice([500, 2000, 8000]),
            millis=self.draw.choice([0, 0, 250, 500]), devices=devices, linked=devices == 2,
            stages=2 if kind == "cuda" and self.draw.random() < self.spread else 1, whole=self.draw.random() < 0.2,
        )  # fmt: skip

    def end(self) -> None:
        """Some replicas are not wanted any more."""
        for key in self.draw.sample(sorted(self.replicas), min(3, len(self.replicas))):
            self.stop(self.replicas[key])

    def requota(self) -> None:
        """An admin sets other limits; nothing is taken away."""
        self.fleet.limits[self.draw.choice(self.tenants)] = self._quota()
        self._regroup()
        self.seen["quotas changed"] += 1

    def _some_node(self, state: str) -> NodeView | None:
        found = [node for node in self.fleet.nodes.values() if node.state == state]
        return self.draw.choice(found) if found else None

    # --- the loop

    def cycle(self, *, calm: bool = False) -> None:
        """Leases, endings, a plan from a snapshot, and its commit, perhaps late, perhaps not at all."""
        for node_id, since in self.silent.items():
            node = self.fleet.nodes[node_id]
            if self.now - since > LEASE_SECONDS and node.state != "lost":
                self.fleet.nodes[node_id] = dataclasses.replace(node, state=NodeState.LOST.value)
                self.seen["nodes lost"] += 1
        for replica in [each for each in self.replicas.values() if each.ending]:
            self.stop(replica)
        if self.follows:
            self.follow()
        for replica in [each for each in self.replicas.values() if each.leaving and each.successor is None]:
            if calm or (self.now + replica.id.int) % 2:
                self.start_over(replica)
        waiting = [replica for replica in self.replicas.values() if not replica.nodes and not replica.ending]
        waiting.sort(key=lambda replica: (-replica.priority, replica.waits_since, replica.id))
        answers = self._plan(waiting)
        if not calm and self.draw.random() < 0.15:
            self.seen["crashes before commit"] += 1
            return
        if not calm and self.draw.random() < 0.25:
            self.draw.choice([self.sicken, self.cut, self.end, self.requota, self.squeeze])()
        self._carry_out(answers, calm=calm)

    def _plan(self, waiting: list[Replica]) -> list[Answer]:
        asks = []
        for replica in waiting:
            if not replica.planned:
                self.past[replica.need.shape] += 1
                replica.planned = True
                if sum(self.past.values()) % 16 == 0:
                    self.demand = Demand.of(self.past)
            asks.append(
                Ask(
                    replica_id=replica.id, generation=replica.generation, deployment_id=replica.deployment,
                    needs={replica.need.kind: replica.need}, desired=4, tenant_id=replica.tenant,
                    priority=replica.priority, making_room=replica.making_room,
                )
            )  # fmt: skip
        return plan(self.fleet.snapshot(self.replicas), asks, self.demand)

    def _carry_out(self, answers: list[Answer], *, calm: bool) -> None:
        going = [len(answer.relief.replica_ids) for answer in answers if answer.relief is not None]
        if sum(going) > max(MAX_VICTIMS, max(going, default=0)) or max(going, default=0) > MAX_FOR_ONE:
            self._wrong("too many at once", str(going))
        for answer in answers:
            if not calm and self.draw.random() < 0.03:
                self.seen["crashes between commits"] += 1
                return
            replica = self.replicas.get(answer.ask.replica_id)
            if answer.places:
                try:
                    self.fleet.commit(answer, self.replicas)
                    self.replicas[answer.ask.replica_id].placed_at = self.now
                    self.seen["placed"] += 1
                except Gone as exc:
                    self.seen[f"stale: {exc}"] += 1
            elif replica is not None:
                replica.reason, replica.making_room = answer.reason, answer.relief is not None
                self.seen[f"refused: {answer.reason}"] += 1
                if answer.relief is not None:
                    self._relieve(answer)

    def _relieve(self, answer: Answer) -> None:
        """Who must go goes: back to waiting, where they are planned like all others."""
        assert answer.relief is not None
        if len({spot.bin for spot in answer.relief.spots}) > 1:
            self.seen["room made over several nodes"] += 1
        for holder in answer.relief.victims:
            replica = self.replicas.get(holder.replica_id)
            if replica is None or not replica.nodes:
                continue
            guaranteed = self.fleet.limits[replica.tenant][0]
            held, passing = (of(replica.tenant, self.replicas) for of in (self.fleet.held_of, self.fleet.passing_of))
            left = held - passing - holder.released[0]
            if replica.tenant != answer.ask.tenant_id and left < guaranteed:
                self.seen["evictions overtaken"] += 1  # its quota was raised, or it lost something else, since the plan
                continue
            self._check_victim(answer.ask, holder, replica)
            moves = any(holder is each for each in answer.relief.moves)
            several = " over several nodes" if len(replica.nodes) > 1 else ""
            self.seen[f"moved{several}" if moves else f"evicted{several}"] += 1
            self.seen["ended beside a lost node"] += holder.stranded
            self.seen["gave back for a group"] += any(holder is each for each in answer.relief.for_group)
            if self.follows and moves:
                self.move(replica)
            elif self.drains:
                replica.leaving, replica.counts = True, self.grouped
            else:
                self.start_over(replica)

    def _check_victim(self, asking: Ask, holder: HolderView, replica: Replica) -> None:
        follows = holder.stranded and replica.deployment == asking.deployment_id
        if replica.tenant == asking.tenant_id and replica.priority >= asking.priority and not follows:
            self._wrong("own equal taken", str(holder.replica_id))
        if replica.leaving:
            self._wrong("taken twice", str(holder.replica_id))

    # --- what must hold

    def check(self) -> None:
        """The database's constraints, counted from the partitions, and that everybody knows why they wait."""
        now = self.fleet.snapshot(self.replicas)
        by_device: dict[uuid.UUID, list[Part]] = {}
        for part in self.fleet.parts.values():
            by_device.setdefault(part.device, []).append(part)
            if part.device not in self.fleet.devices:
                self._wrong("device vanished under an owner", str(part))
        for parts in by_device.values():
            if any(part.whole for part in parts) and len(parts) > 1:
                self._wrong("two owners", str(parts))
        for device in now.devices:
            if device.held_bytes > device.memory_bytes or device.held_millis > device.millis:
                self._wrong("overcommitted", str(device))
        for node in now.nodes.values():
            if node.held_host_bytes > node.memory_bytes or node.held_millicpus > node.millicpus:
                self._wrong("overcommitted", str(node))
        self._check_replicas()

    def _check_replicas(self) -> None:
        for replica in self.replicas.values():
            ranks = [key for key in self.fleet.parts if key[0] == replica.id]
            whole = replica.need.devices * replica.need.stages if replica.nodes else 0
            if len(ranks) != whole and not (replica.ending and len(ranks) < whole):
                self._wrong("gang in part", str(replica))

    def check_settled(self) -> None:
        """Once nothing disturbs any more: everybody has a place or a reason, and the reasons are true."""
        now = self.fleet.snapshot(self.replicas)
        for replica in self.replicas.values():
            if replica.nodes or replica.ending:
                continue
            if not replica.reason:
                self._wrong("stuck without a reason", str(replica))
            need, tenant = replica.need, now.tenants[replica.tenant]
            allowed = tenant.under(now.groups.get(tenant.group)).within_limit(need.total_bytes)
            if need.devices * need.stages == 1 and (allowed or self._due(replica, now)):
                free = [d for d in now.devices if refuse(d, now.nodes[d.node_id], {need.kind: need}) is None]
                if free:
                    self._wrong("refused though it fits", f"{replica} {free[0]}")

    def _due(self, replica: Replica, now: Snapshot) -> bool:
        """It is guaranteed, and one replica of another tenant of its group gives back enough for it."""
        tenant, size = now.tenants[replica.tenant], replica.need.total_bytes
        group = now.groups.get(tenant.group)
        if group is None or not (tenant.within_limit(size) and tenant.within_guarantee(size)):
            return False
        lack, _millis = group.lacks(size, 0)
        beside = {key: each for key, each in now.tenants.items() if each.group == group.id and key != tenant.id}
        able = [each for each in now.holders if each.tenant_id in beside and each.endable and each.counts]
        return any(each.memory_bytes >= lack and beside[each.tenant_id].borrowed(each.memory_bytes) for each in able)

    def _wrong(self, what: str, details: str) -> None:
        self.broken[what] += 1
        self.first_wrong = self.first_wrong or details

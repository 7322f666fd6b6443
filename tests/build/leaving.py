"""What the serving loop does with replicas in a fleet in memory: they end, start over, and are followed by others."""

import uuid
from collections import Counter

from tests.build.memory_fleet import Fleet, Replica

MOVE_SECONDS = 300


class Leaving:
    """Replicas of a fleet, and how they leave their places."""

    def __init__(self) -> None:
        self.now = 0
        self.fleet = Fleet()
        self.replicas: dict[uuid.UUID, Replica] = {}
        self.seen: Counter[str] = Counter()
        self._numbers = iter(range(1, 1_000_000))

    def new_id(self) -> uuid.UUID:
        """Ids count up, so that a history repeats."""
        return uuid.UUID(int=next(self._numbers))

    def move(self, replica: Replica) -> None:
        """It is asked to leave once its successor has its places."""
        replica.leaving, replica.leaves_by = True, self.now + MOVE_SECONDS
        if replica.successor not in self.replicas:
            self._succeed(replica)

    def stop(self, replica: Replica) -> None:
        """It is not wanted any more."""
        self.fleet.release(replica)
        if replica.nodes:
            replica.ending, replica.leaving, replica.counts = (
                True,
                False,
                False,
            )  # its partitions there stay taken until these nodes report
        else:
            del self.replicas[replica.id]

    def start_over(self, replica: Replica) -> None:
        """It loses its place and waits for another; what it has of a lost node stays taken."""
        replica.leaving = replica.counts = False
        if replica.ending or all(self.fleet.nodes[node].state == "lost" for node in replica.nodes):
            return
        if replica.successor in self.replicas or any(self.fleet.nodes[n].state == "lost" for n in replica.nodes):
            if replica.successor not in self.replicas:
                self._succeed(replica)
            self.stop(replica)
            return
        self.fleet.release(replica)
        replica.generation += 1
        replica.reason = ""
        replica.waits_since = self.now

    def _succeed(self, replica: Replica) -> None:
        made = Replica(
            self.new_id(), replica.tenant, replica.deployment, replica.need, replica.priority, waits_since=self.now
        )
        self.replicas[made.id] = made
        replica.successor = made.id

    def follow(self) -> None:
        """As ``serving.reconcile.plan``: a successor for each that must leave, which ends once that has its places."""
        for replica in [each for each in self.replicas.values() if each.nodes and not each.ending]:
            nodes = [self.fleet.nodes[node].state for node in replica.nodes]
            devices = [
                self.fleet.devices[part.device] for key, part in self.fleet.parts.items() if key[0] == replica.id
            ]
            sick = any(device.state != "healthy" for device in devices)
            next_ = self.replicas.get(replica.successor) if replica.successor is not None else None
            if not (replica.leaving or sick or {"lost", "draining"} & set(nodes)):
                while next_ is not None and not next_.ending:  # it is well again: nobody has to follow it
                    after = next_.successor
                    self.stop(next_)
                    next_ = self.replicas.get(after) if after is not None else None
                replica.successor = None
            elif next_ is None or next_.ending:
                self._succeed(replica)
            elif next_.nodes and next_.placed_at < self.now and set(nodes) != {"lost"}:
                several = " over several nodes" if len(nodes) > 1 else ""
                self.seen[f"followed by a successor{several}"] += 1
                self.stop(replica)
            elif replica.leaving and self.now >= replica.leaves_by:
                self.seen["left without a successor"] += 1
                self.stop(replica)

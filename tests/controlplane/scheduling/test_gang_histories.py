"""Random histories of real rows and scripted agents with replicas over several nodes: all of them come to rest."""

import datetime
import itertools
import os
import random

import pytest

from fleet import services as fleet
from fleet.models import Device, Node, Partition
from kernel import clock, scope
from runtime.wire.assignments import Desired
from runtime.wire.devices import HealthCode, HealthFact
from runtime.wire.reports import Phase
from serving import services
from serving.models import Member, Priority, Replica
from tests.build.controlplane import actor_for, make_tenant, make_user, owner_of
from tests.build.spreads import deploy, machine, settle, wide_version

pytestmark = pytest.mark.django_db
START = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
_sequence = itertools.count(1)


class History:
    """Some nodes, some deployments over one node or two, and what happens to them; ``silent`` nodes do not report."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.now = START
        self.tenant, self.admin = make_tenant("acme"), actor_for(make_user(admin=True))
        self.version = wide_version(self.tenant)
        self.deployments, self.nodes, self.silent = [], {}, set()
        self.log = []
        for _number in range(3):
            self.join()

    def join(self):
        if len(self.nodes) < 5:
            name = f"n{next(_sequence)}"
            self.nodes[name] = machine(name, gpus=2, gib=16)

    def row(self, name):
        return Node.objects.get(id=self.nodes[name].id)

    def any_node(self):
        return self.draw.choice(sorted(self.nodes))

    def lose(self):
        name = self.any_node()
        if self.row(name).state != "lost":
            self.silent.add(name)
            Node.objects.filter(id=self.nodes[name].id).update(state="lost", returns_to="ready")

    def come_back(self):
        if self.silent:
            self.silent.remove(self.draw.choice(sorted(self.silent)))

    def remove(self):
        if self.silent and len(self.nodes) > 2:
            name = self.draw.choice(sorted(self.silent))
            fleet.remove(actor=self.admin, node=self.row(name))
            self.silent.remove(name)
            del self.nodes[name]

    def drain(self):
        row = self.row(self.any_node())
        if row.state == "ready":
            fleet.drain(actor=self.admin, node=row, accept_gap=self.draw.random() < 0.3)

    def restore(self):
        row = self.row(self.any_node())
        if row.state in ("draining", "drained"):
            fleet.uncordon(actor=self.admin, node=row)

    def sicken(self):
        name = self.any_node()
        if name not in self.silent:
            sick = self.nodes[name]
            fault = HealthFact(
                sequence=next(_sequence), code=HealthCode.XID, xid=self.draw.choice([74, 79]),
                at=self.now.timestamp(), device_uuid=self.draw.choice(sick.devices).uuid,
            )  # fmt: skip
            sick.report(health=[fault])

    def heal(self):
        Device.objects.update(state="healthy", dead=False, reason="", message="")

    def fail(self):
        name = self.any_node()
        agent = self.nodes[name]
        running = [key for key, seen in agent.replicas.items() if seen.phase is not Phase.STOPPED]
        if running and name not in self.silent:
            agent.change(self.draw.choice(running), Phase.FAILED, reason="EngineExited", message="killed")
            agent.report()

    def deploy(self):
        if len(self.deployments) < 4:
            config = {"kv_cache_gib": self.draw.choice([2, 8, 24, 24])}
            made = deploy(self.tenant, self.version, endpoint=f"e{len(self.deployments)}", **config,
                          priority=self.draw.choice(Priority.values))  # fmt: skip
            self.deployments.append(made)

    def change(self):
        if self.deployments:
            one = self.draw.choice(self.deployments)
            services.scale(
                actor=actor_for(owner_of(self.tenant)), tenant=self.tenant, deployment=one,
                replicas=self.draw.choice([0, 1, 1, 2]), priority=self.draw.choice(Priority.values),
            )  # fmt: skip

    def beat(self, names=None):
        for name in names if names is not None else sorted(self.nodes):
            if name not in self.silent:
                self.nodes[name].cycle()
        settle()
        self.check()

    def run(self, steps):
        doing = [self.lose, self.come_back, self.come_back, self.remove, self.drain, self.restore, self.sicken,
                 self.heal, self.fail, self.deploy, self.deploy, self.change, self.join]  # fmt: skip
        for _ in range(steps):
            self.now += datetime.timedelta(seconds=self.draw.choice([1, 5, 20]))
            with clock.frozen(self.now):
                what = self.draw.choice(doing)
                self.log.append(what.__name__)
                what()
                self.beat([name for name in sorted(self.nodes) if self.draw.random() < 0.7])
        self.silent.clear()
        for quiet in range(30):
            self.now += datetime.timedelta(seconds=30)
            before = self.standing()
            with clock.frozen(self.now):
                self.heal()
                for name in sorted(self.nodes):
                    if self.row(name).state in ("draining", "drained"):
                        fleet.uncordon(actor=self.admin, node=self.row(name))
                self.beat()
            if quiet > 2 and self.standing() == before:
                return

    def standing(self):
        with scope.all_tenants():
            return set(Replica.objects.values_list("id", "state", "generation", "recalled"))

    def check(self):
        """Everybody waits with a reason, and has all of its places or none, but for what ends node by node."""
        with scope.all_tenants():
            live = list(Replica.objects.exclude(state="stopped"))
        for row in live:
            held = Partition.objects.filter(replica_id=row.id).count()
            if row.state == "pending":
                assert row.reason, self.log
                assert row.message, self.log
            if row.state in ("pending", "stopped") or row.node_id is None:
                assert held == 0, (self.log, row.state)
            elif row.state != "draining" and not row.recalled:
                whole = max(row.parallel.get("tensor", 1), 1) * row.parallel.get("pipeline", 1)
                assert held == whole, (self.log, row.state)
        owners = {row.id for row in live}
        assert set(Partition.objects.values_list("replica_id", flat=True)) <= owners, self.log

    def check_settled(self):
        with scope.all_tenants():
            live = list(Replica.objects.exclude(state="stopped"))
        left = [(row.state, row.reason, row.message) for row in live if row.state not in ("ready", "pending")]
        assert not left, (self.log, left)
        members = Member._base_manager.filter(replica__in=[row.id for row in live if row.state == "pending"])
        assert not members.exists(), self.log
        for agent in self.nodes.values():
            assert all(each.desired is Desired.RUN for each in agent.assignments().replicas), self.log


def test_replicas_over_several_nodes_come_to_rest():
    history = History(int(os.environ.get("SEED", "2")))
    history.run(20)
    history.check_settled()

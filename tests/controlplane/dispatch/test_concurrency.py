"""Everything at once on real connections: reports, people and loops neither deadlock nor spoil the books."""

import contextlib
import datetime
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable

import pytest
from django.db import connection, transaction

from dispatch.reports import apply_report
from fleet import heartbeats, leases
from fleet import services as fleet
from fleet.errors import CapacityGone, MachineRemoved
from fleet.models import Device, LoopRun, Node, Partition
from kernel import actors, clock, errors, scope
from runtime.wire.reports import Phase
from scheduling import commit, cycle, reading
from scheduling import plan as planner
from serving import services
from serving.models import Replica
from serving.reconcile import cycle as serving
from serving.reconcile import plan
from tenants import services as tenants
from tests.build import catalog
from tests.build.controlplane import actor_for, client_for, make_tenant, owner_of
from tests.build.machines import GIB, FakeAgent, FakeGateway, Refused

pytestmark = pytest.mark.django_db(transaction=True)
ROUNDS = 15
AT_ONCE = datetime.timedelta(0)
Work = Callable[[random.Random], object]


class Crowd:
    """Threads that do things at once. Those of :meth:`lead` do so many rounds; the others go on until these are done.

    What escapes from any of them ends the run and is raised.
    """

    def __init__(self, seed: int) -> None:
        self._seeds = random.Random(seed)
        self._leaders: list[threading.Thread] = []
        self._others: list[threading.Thread] = []
        self._over = threading.Event()
        self._escaped: list[BaseException] = []

    def lead(self, work: Work, rounds: int) -> None:
        self._leaders.append(self._thread(work, range(rounds)))

    def join(self, work: Work) -> None:
        self._others.append(self._thread(work, itertools.count()))

    def run(self) -> None:
        for thread in [*self._leaders, *self._others]:
            thread.start()
        for thread in self._leaders:
            thread.join()
        self._over.set()
        for thread in self._others:
            thread.join()
        if self._escaped:
            raise self._escaped[0]

    def _thread(self, work: Work, rounds: Iterable[int]) -> threading.Thread:
        return threading.Thread(target=self._repeat, args=(work, rounds, random.Random(self._seeds.random())))

    def _repeat(self, work: Work, rounds: Iterable[int], draw: random.Random) -> None:
        try:
            for _ in rounds:
                if self._over.is_set():
                    return
                work(draw)
        except BaseException as exc:
            self._escaped.append(exc)
            self._over.set()
        finally:
            connection.close()


def deadlocks() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def reporting(agent: FakeAgent, wandering):
    """An agent whose engines fail now and then; ``wandering`` devices are seen by several agents."""
    own = list(agent.devices)

    def once(draw: random.Random) -> None:
        seen = draw.sample(wandering, draw.randrange(len(wandering) + 1))
        agent.devices = draw.sample([*own, *seen], len(own) + len(seen))
        try:
            agent.obey(draw.choice([Phase.READY, Phase.READY, Phase.LOADING]))
            for key in agent.replicas:
                if draw.random() < 0.1:
                    agent.change(key, Phase.FAILED, reason="Killed")
            agent.report()
        except Refused as refused:
            if refused.status != 410:
                raise
            agent.join()

    return once


def commanding(tenant, deployments):
    """Somebody at the REST interface: scales, stops and starts the tenant's deployments, and reads the answers."""
    client = client_for(owner_of(tenant))

    def once(draw: random.Random) -> None:
        path = f"/api/v1/tenants/{tenant.slug}/deployments/{draw.choice(deployments).id}"
        match draw.choice(["scale", "scale", "stop", "start", "start"]):
            case "scale":
                answer = client.patch(path, {"replicas": draw.randrange(5)}, format="json")
            case verb:
                answer = client.post(f"{path}/{verb}")
        assert answer.status_code == 200, answer.content
        time.sleep(draw.random() * 0.05)

    return once


def coming_and_going(tenant, model):
    """Somebody who deploys behind new and old endpoints, makes keys, and deletes again."""
    client = client_for(owner_of(tenant))
    base = f"/api/v1/tenants/{tenant.slug}"

    def once(draw: random.Random) -> None:
        body = {"endpoint": draw.choice(["chat", f"e{draw.randrange(9)}"]), "model": model, "version": "1",
                "config": {}, "replicas": 1}  # fmt: skip
        made = client.post(f"{base}/deployments", body, format="json")
        assert made.status_code == 201, made.content
        tenants.mint_playground_key(actor=actor_for(owner_of(tenant)), tenant=tenant)
        time.sleep(draw.random() * 0.05)
        gone = client.delete(f"{base}/deployments/{made.json()['id']}")
        assert gone.status_code == 202, gone.content

    return once


def administering(draw: random.Random) -> None:
    """Nodes go out of service and come back; now and then one seems silent, or nobody listened for a while."""
    admin = actors.system("tests")
    node = draw.choice(list(Node.objects.all()))
    with contextlib.suppress(errors.Conflict):  # the node is not in a state for it, or still holds something
        match draw.choice(["drain", "uncordon", "uncordon", "remove", "silence", "deaf"]):
            case "drain":
                fleet.drain(actor=admin, node=node, accept_gap=True)
            case "uncordon":
                fleet.uncordon(actor=admin, node=node)
            case "remove":
                Node.objects.filter(id=node.id).update(lease_expires_at=clock.now())
                leases.expire()
                fleet.remove(actor=admin, node=node)
            case "silence":
                Node.objects.filter(id=node.id).update(lease_expires_at=clock.now())
            case "deaf":
                LoopRun.objects.filter(name=leases.LOOP).update(at=clock.now() - datetime.timedelta(hours=1))
    time.sleep(0.1)


def looping(_draw: random.Random) -> None:
    leases.expire()
    serving.run()
    cycle.run()
    time.sleep(0.01)


def check_books() -> None:
    for device in Device.objects.all():
        held = sum(Partition.objects.filter(device=device).values_list("memory_bytes", flat=True))
        assert device.held_bytes == held <= device.memory_bytes
    for node in Node.objects.all():
        parts = list(Partition.objects.filter(device__node=node))
        assert node.held_millicpus == sum(part.millicpus for part in parts)
        assert node.held_host_bytes == sum(part.host_bytes for part in parts)
    owners = {part.replica_id: part.device.node_id for part in Partition.objects.select_related("device")}
    assert Partition.objects.count() == len(owners)
    with scope.all_tenants():
        placed = Replica.objects.exclude(node=None).exclude(state="stopped").values_list("id", "node_id")
        assert owners == dict(placed)


def deploy(tenant, name="chat", replicas=1, version=None):
    version = version or catalog.checked_version(tenant)
    return services.deploy_version(
        actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name=name, model=version.model.name,
        version=version.number, config={}, replicas=replicas,
    )  # fmt: skip


def test_reports_people_and_loops_at_once(monkeypatch):
    monkeypatch.setattr(heartbeats, "DETAILS_EVERY", datetime.timedelta(milliseconds=20))
    monkeypatch.setattr(plan, "PATIENCE", AT_ONCE)
    monkeypatch.setattr(plan, "backoff", lambda _failures: AT_ONCE)
    crowd = Crowd(seed=1)
    wandering = [FakeAgent.device(memory_bytes=2 * GIB) for _ in range(3)]
    agents = [FakeAgent(f"n{number}", memory_bytes=2 * GIB, cpus=64) for number in range(3)]
    for agent in agents:
        agent.join()
        agent.report()
        crowd.lead(reporting(agent, wandering), ROUNDS)
    for slug in ("acme", "brisk"):
        tenant = make_tenant(slug)
        version = catalog.checked_version(tenant)
        deployments = [deploy(tenant, name, 3, version) for name in ("chat", "code")]
        crowd.join(coming_and_going(tenant, version.model.name))
        crowd.join(commanding(tenant, deployments))
        crowd.join(commanding(tenant, deployments))
    crowd.join(looping)
    crowd.join(looping)
    crowd.join(administering)
    gateway = FakeGateway()
    gateway.join()
    crowd.join(lambda _draw: gateway.routes())
    before = deadlocks()
    crowd.run()
    check_books()
    assert deadlocks() == before


def test_a_replica_placed_while_its_deployment_is_stopped_keeps_nothing():
    tenant = make_tenant("acme")
    agent = FakeAgent()
    agent.join()
    agent.report()
    deployment = deploy(tenant)
    (answer,) = planner.plan(reading.take(), cycle.waiting())
    failed = []

    def stop():
        try:
            services.stop(actor=actor_for(owner_of(tenant)), tenant=tenant, deployment=deployment)
        except BaseException as exc:
            failed.append(exc)
        finally:
            connection.close()

    thread = threading.Thread(target=stop)
    with transaction.atomic():
        commit.commit(answer)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive(), "who stops it has to wait for the placement"
    thread.join(20)
    assert failed == []
    with scope.all_tenants():
        assert Replica.objects.get().state == "draining"
    check_books()
    agent.cycle()
    assert Partition.objects.count() == 0


@contextlib.contextmanager
def locked_by_another(node):
    """A transaction on a connection of its own holds ``node``."""
    held, over = threading.Event(), threading.Event()

    def hold():
        try:
            with transaction.atomic():
                Node.objects.select_for_update(no_key=True).get(id=node.id)
                held.set()
                over.wait(20)
        finally:
            connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(20)
    try:
        yield
    finally:
        over.set()
        thread.join(20)


def test_a_device_that_has_moved_since_the_plan_is_not_taken():
    tenant = make_tenant("acme")
    agents = [FakeAgent("first"), FakeAgent("second")]
    agents[1].devices = agents[0].devices
    for agent in agents:
        agent.join()
    agents[0].report()
    deploy(tenant)
    (answer,) = planner.plan(reading.take(), cycle.waiting())
    agents[1].report()
    with locked_by_another(Node.objects.get(name="second")), connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '2s'")
        with pytest.raises(
            CapacityGone
        ):  # and not for the lock: nodes are locked in one order, and that is another one
            commit.commit(answer)
        cursor.execute("RESET lock_timeout")
    check_books()
    assert cycle.run() == 1
    assert [part.device.node.name for part in Partition.objects.all()] == ["second"]


def test_a_report_that_arrives_after_its_node_was_removed_brings_nothing_back():
    agent = FakeAgent()
    agent.join()
    agent.report()
    node = Node.objects.get()
    fleet.remove(actor=actors.system("tests"), node=node)
    with pytest.raises(MachineRemoved):
        apply_report(node, agent.draft())
    assert Device.objects.count() == 0


def test_a_node_that_is_removed_and_joins_again_at_once_holds_nothing_of_before():
    agent = FakeAgent()
    agent.join()
    agent.report()
    deploy(make_tenant("acme"))
    cycle.run()
    agent.cycle()
    with clock.frozen(clock.now() + datetime.timedelta(minutes=1)):
        Node.objects.update(lease_expires_at=clock.now())
        leases.expire()
        fleet.remove(actor=actors.system("tests"), node=Node.objects.get())
        agent.join()
        agent.report()
        check_books()
        assert agent.obey().replicas == []
        with scope.all_tenants():
            assert Replica.objects.values_list("state", "reason", "node_id").get() == ("failed", "NodeRemoved", None)
        serving.run()
        assert cycle.run() == 1
        check_books()

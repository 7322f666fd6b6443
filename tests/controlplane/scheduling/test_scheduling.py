"""Placement against the rows: reasons while waiting, stale plans, the dry run, and random histories."""

import dataclasses
import datetime
import random
import uuid

import pytest

from catalog import configs
from fleet import leases
from fleet.errors import CapacityGone
from fleet.models import Device, Node, Partition
from kernel import clock, errors, scope
from runtime.wire.devices import DeviceKind
from runtime.wire.reports import Phase
from scheduling import commit, cycle, demand_log, need, reading
from scheduling.answers import Ask
from scheduling.models import PastRequest
from scheduling.need import Need
from scheduling.plan import plan
from serving import services
from serving.models import Deployment, Replica
from serving.reconcile import cycle as serving
from tests.build import catalog
from tests.build.controlplane import actor_for, client_for, make_tenant, owner_of
from tests.build.machines import GIB, FakeAgent, FakeGateway

pytestmark = pytest.mark.django_db
START = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)


@pytest.fixture
def tenant():
    return make_tenant("acme")


@pytest.fixture
def version(tenant):
    return catalog.checked_version(tenant)


def agent(name="", **facts):
    made = FakeAgent(name, **facts)
    made.join()
    made.report()
    return made


def deploy(tenant, version, replicas=1, endpoint="chat"):
    return services.deploy_version(
        actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name=endpoint, model=version.model.name,
        version=version.number, config={}, replicas=replicas,
    )  # fmt: skip


def rows():
    with scope.all_tenants():
        return list(Replica.objects.order_by("id"))


def test_a_waiting_replica_says_why_and_goes_when_there_is_room(tenant, version):
    deploy(tenant, version)
    cycle.run()
    (row,) = rows()
    assert (row.state, row.reason) == ("pending", "NoDevices")
    agent(memory_bytes=1024**2)
    agent(kind=DeviceKind.SIMULATED)
    cycle.run()
    (row,) = rows()
    assert (row.state, row.reason) == ("pending", "InsufficientDeviceMemory")
    assert {device["reason"] for device in row.explanation["devices"]} == {
        "InsufficientDeviceMemory",
        "SimulatedDevice",
    }
    agent(memory_bytes=4 * GIB)
    cycle.run()
    (row,) = rows()
    assert (row.state, row.reason) == ("assigned", "Placed")
    held = Partition.objects.get()
    assert held.memory_bytes == row.explanation["need"]["total_bytes"]
    assert held.device.held_bytes == held.memory_bytes


def test_replicas_spread_over_nodes(tenant, version):
    for name in ("one", "two", "three"):
        agent(name)
    deploy(tenant, version, replicas=3)
    cycle.run()
    assert len({row.node_id for row in rows()}) == 3


def test_a_stale_plan_writes_nothing(tenant, version):
    node = agent()
    deploy(tenant, version)
    (answer,) = plan(reading.take(), cycle.waiting())
    Node.objects.update(state="cordoned")
    with pytest.raises(CapacityGone):
        commit.commit(answer)
    Node.objects.update(state="ready")
    with scope.all_tenants():
        Replica.objects.update(generation=2)
    with pytest.raises(errors.StaleTransition):
        commit.commit(answer)
    assert (Partition.objects.count(), Device.objects.get().held_bytes) == (0, 0)
    assert node.assignments().replicas == []


def test_a_version_without_facts_waits_alone(tenant, version, monkeypatch):
    deploy(tenant, version)
    agent()
    real, calls = need.estimate, []

    def first_fails(*args, **kwargs):
        calls.append(args)
        if len(calls) == 1:
            raise KeyError("layers")
        return real(*args, **kwargs)

    monkeypatch.setattr(need, "estimate", first_fails)
    deploy(tenant, version, endpoint="other")
    cycle.run()
    assert sorted((row.state, row.reason) for row in rows()) == [("assigned", "Placed"), ("pending", "NeedUnknown")]


def test_a_gang_is_committed_whole_or_not_at_all(tenant, version):
    node = FakeAgent("one", kind=DeviceKind.CUDA, memory_bytes=8 * GIB)
    node.devices.append(node.device(DeviceKind.CUDA, 8 * GIB))
    node.join()
    node.report()
    deploy(tenant, version)
    (waits,) = cycle.waiting()
    pair = dataclasses.replace(waits.needs["cuda"], devices=2, memory_bytes=5 * GIB, host_bytes=3 * GIB, whole=True)
    (answer,) = plan(reading.take(), [dataclasses.replace(waits, needs={"cuda": pair})])
    Device.objects.filter(uuid=answer.places[1].device.uuid).update(state="suspect")
    with pytest.raises(CapacityGone):
        commit.commit(answer)
    assert (Partition.objects.count(), Node.objects.get().held_millicpus) == (0, 0)
    Device.objects.update(state="healthy")
    commit.commit(answer)
    held = list(Partition.objects.order_by("rank"))
    assert [(part.rank, part.isolation, part.memory_bytes) for part in held] == [
        (0, "exclusive", 5 * GIB),
        (1, "exclusive", 5 * GIB),
    ]
    assert sum(part.host_bytes for part in held) == Node.objects.get().held_host_bytes == 3 * GIB
    (row,) = rows()
    assert (row.state, row.message) == ("assigned", "Placed on Test cuda and 1 more of node one.")
    assert [rank["device_uuid"] for rank in row.explanation["ranks"]] == [part.device.uuid for part in held]


def test_demand_is_learned_once_per_replica_and_fades(tenant, version):
    deploy(tenant, version, replicas=2)
    with clock.frozen(START):
        cycle.run()
        cycle.run()
        (past,) = PastRequest.objects.all()
        assert (past.kind, past.devices, past.weight) == ("cuda", 1, 2.0)
        assert past.memory_bytes % demand_log.GRAIN_BYTES == 0
    deploy(tenant, version, endpoint="other")
    with clock.frozen(START + demand_log.HALF_LIFE):
        cycle.run()
        assert PastRequest.objects.get().weight == pytest.approx(2.0)  # half of two, and one
        assert len(demand_log.current().weights) == 1


def test_the_weights_of_one_that_sleeps_are_charged_to_host_memory(version):
    awake, sleeper = need.needs_of(version, configs.DEFAULTS), need.needs_of(version, configs.DEFAULTS, sleeps=True)
    weights = awake["cuda"].estimate.weights_bytes
    assert weights > 0
    assert sleeper["cuda"].host_bytes - awake["cuda"].host_bytes == weights
    assert sleeper["cpu"] == awake["cpu"]


def test_demand_keeps_a_bounded_number_of_shapes(monkeypatch):
    monkeypatch.setattr(demand_log, "MAX_ROWS", 3)
    for number in range(1, 6):
        wanted = Need(kind="cuda", memory_bytes=number * GIB, host_bytes=0, millicpus=1000)
        ask = Ask(
            replica_id=uuid.UUID(int=number), generation=1, deployment_id=uuid.UUID(int=1), needs={"cuda": wanted},
            first=True,
        )  # fmt: skip
        demand_log.record([ask] * number)
    assert sorted(PastRequest.objects.values_list("weight", flat=True)) == [3.0, 4.0, 5.0]


def test_demand_knows_the_products_that_requests_are_limited_to():
    wanted = Need(kind="cuda", memory_bytes=GIB, host_bytes=0, millicpus=1000)
    on = {name: dataclasses.replace(wanted, products=frozenset({name})) for name in ("H100", "A100")}
    either = {f"cuda/{name}": each for name, each in on.items()}
    asks = [
        Ask(replica_id=uuid.uuid4(), generation=1, deployment_id=uuid.uuid4(), needs=needs, first=True)
        for needs in (either, either, {"cuda": wanted}, {"cuda": wanted} | either, {"cuda": on["H100"]})
    ]
    assert demand_log.record(asks) == 5
    demand = demand_log.current()
    assert {shape.products: share for shape, share in demand.named} == {
        ("A100", "H100"): pytest.approx(0.4),
        ("H100",): pytest.approx(0.2),
    }
    assert len(demand.weights) == 1
    many = {f"p{number}": dataclasses.replace(wanted, products=frozenset({f"p{number}"})) for number in range(17)}
    assert demand_log.shape_of(many).products == ()
    assert demand_log.shape_of({"cuda": dataclasses.replace(wanted, products=frozenset({"x" * 2001}))}).products == ()


def test_what_would_help_names_ones_own_replicas(tenant, version):
    agent(memory_bytes=GIB * 7 // 10)
    deploy(tenant, version)
    cycle.run()
    with scope.all_tenants():
        held = Partition.objects.get().memory_bytes
        label = f"chat/{Replica.objects.get().short_id}"
    answer = fit(client_for(owner_of(tenant)), version)
    assert answer["reason"] == "InsufficientDeviceMemory"
    (device,) = answer["devices"]
    assert 0 < device["short_by"] <= held
    assert f"stop {label} there" in device["would_fit_if"]
    assert label in answer["would_fit_if"]


def fit(client, version, status=200, **facts):
    body = {"model": version.model.name, "version": str(version.number), "config": {}, "replicas": 1, **facts}
    answer = client.post("/api/v1/tenants/acme/fit", body, format="json")
    assert answer.status_code == status, answer.json()
    return answer.json()


def test_nothing_is_placed_on_a_node_whose_lease_has_run_out(tenant, version, monkeypatch):
    """Also where so many are silent that none is declared lost: that what it has is free cannot be proved."""
    agent(memory_bytes=8 * GIB)
    deploy(tenant, version)
    late = clock.now() + datetime.timedelta(minutes=5)
    monkeypatch.setattr(clock, "now", lambda: late)
    cycle.run()
    (row,) = rows()
    assert (row.state, row.reason, Node.objects.get().state) == ("pending", "NodeLost", "ready")


def test_the_dry_run_is_the_planners_answer_and_writes_nothing(tenant, version):
    client = client_for(owner_of(tenant))
    empty = fit(client, version)
    assert (empty["fits"], empty["reason"], empty["devices"]) == (False, "NoDevices", [])
    assert empty["need"]["total_bytes"] > 0
    agent(memory_bytes=2 * GIB)
    yes = fit(client, version)
    assert (yes["fits"], yes["placed"], yes["would_fit_if"]) == (True, 1, "")
    many = fit(client, version, replicas=40)
    assert (many["fits"], many["placed"] < 40) == (False, True)
    assert many["message"].startswith(f"{many['placed']} of 40 replicas would find a place.")
    big = fit(client, version, config={"kv_cache_gib": 3})
    assert (big["fits"], big["reason"]) == (False, "InsufficientDeviceMemory")
    assert big["devices"][0]["need_bytes"] > 3 * GIB
    assert "max_model_len or the KV cache" in big["would_fit_if"]
    assert rows() == []
    assert fit(client, version, 400, config={"speed": 1})["code"] == "invalid_config"
    longer = fit(client, version, 400, config={"max_model_len": version.max_model_len + 1})
    assert (longer["data"]["field"], f"at most {version.max_model_len}" in longer["detail"]) == ("max_model_len", True)
    assert fit(client, version, 404, model="nothing")["code"] == "model_not_found"


def check_invariants(gateway):
    """What must hold after every step, whatever happened."""
    for device in Device.objects.all():
        held = sum(Partition.objects.filter(device=device).values_list("memory_bytes", flat=True))
        assert device.held_bytes == held <= device.memory_bytes
    for node in Node.objects.exclude(state="removed"):
        parts = Partition.objects.filter(device__node=node)
        assert node.held_millicpus == sum(parts.values_list("millicpus", flat=True))
    owners = list(Partition.objects.values_list("replica_id", flat=True))
    assert len(owners) == len(set(owners))
    placed = {row.id for row in rows() if row.node_id and row.state not in ("stopped",) and row.node.state != "removed"}
    assert set(owners) == placed
    assert all(row.reason for row in rows() if row.state in ("pending", "failed", "unreachable"))
    alive = {str(row.id) for row in rows() if row.node_id and row.node.state not in ("lost", "removed")}
    for entry in gateway.routes().endpoints:
        for variant in entry.variants:
            assert {route.replica_id for route in variant.replicas} <= alive


class History:
    """Three agents, one deployment, and a clock that only this moves."""

    def __init__(self, tenant, version, seed):
        self.tenant, self.draw, self.moment = tenant, random.Random(seed), START
        self.actor = actor_for(owner_of(tenant))
        self.gateway = FakeGateway()
        self.gateway.join()
        self.silent = ""
        with clock.frozen(self.moment):
            leases.expire()
            self.agents = [agent(f"n{number}", memory_bytes=GIB) for number in range(3)]
            deploy(tenant, version, replicas=2)

    @property
    def deployment(self):
        with scope.all_tenants():
            return Deployment.objects.get()

    def disturb(self):
        step = self.draw.choice(
            [self.nothing, self.nothing, self.scale, self.silence, self.fail, self.stop, self.start]
        )
        step({"actor": self.actor, "tenant": self.tenant, "deployment": self.deployment})

    def nothing(self, _common):
        self.silent = ""

    def scale(self, common):
        services.scale(**common, replicas=self.draw.randrange(4))

    def stop(self, common):
        services.stop(**common)

    def start(self, common):
        services.start(**common)

    def silence(self, _common):
        self.silent = self.draw.choice(self.agents).name

    def fail(self, _common):
        victim = self.draw.choice(self.agents)
        for key in victim.replicas:
            victim.change(key, Phase.FAILED, reason="Killed")

    def pass_time(self, seconds, *, disturbed):
        self.moment += datetime.timedelta(seconds=seconds)
        with clock.frozen(self.moment):
            if disturbed:
                self.disturb()
            leases.expire()
            serving.run()
            cycle.run()
            for each in self.agents:
                if disturbed and each.name == self.silent:
                    continue
                if disturbed and self.draw.random() < 0.3:
                    each.report()  # reports without having read its orders
                else:
                    each.cycle()
            check_invariants(self.gateway)


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_keep_the_books_and_end_well(tenant, version, seed):
    history = History(tenant, version, seed)
    for _ in range(16):
        history.pass_time(history.draw.choice([1, 2, 5, 9]), disturbed=True)
    for _ in range(12):  # everybody speaks and nothing fails any more: it settles
        history.pass_time(16, disturbed=False)
    deployment = history.deployment
    target = deployment.desired_replicas if deployment.state == "running" else 0
    assert sorted(row.state for row in rows() if row.state != "stopped") == ["ready"] * target
    assert Partition.objects.count() == target

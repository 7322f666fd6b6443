"""Replicas over several devices and nodes: the plan for the fleet there is, its commit, its life, and what is shown."""

import uuid

import msgspec
import pytest

from catalog import configs
from fleet import services as fleet
from fleet.models import Node, Partition
from kernel import errors, scope
from ledger.models import AuditEvent
from runtime.wire.assignments import Desired
from runtime.wire.devices import DeviceKind, DevicePath, NvLinkFacts
from runtime.wire.reports import Phase
from scheduling import cycle, topology
from scheduling.fit import fit
from scheduling.snapshot import Snapshot
from serving import services
from serving.models import Member, Replica
from serving.reconcile import cycle as serving
from tests.build import catalog
from tests.build.controlplane import actor_for, client_for, make_tenant, make_user, owner_of
from tests.build.fleets import gpu, node
from tests.build.machines import GIB, FakeAgent, FakeGateway

pytestmark = pytest.mark.django_db

WIDE = {
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 8,
    "max_position_embeddings": 128,
}


@pytest.fixture
def tenant():
    return make_tenant("acme")


@pytest.fixture
def version(tenant):
    values = {**catalog.CONFIG, **WIDE}
    return catalog.checked_version(
        tenant, catalog.huggingface(WIDE, model__safetensors=catalog.weights(catalog.layer_shapes(values)))
    )


def machine(name, gpus=4, gib=16, *, nvlink=True, stand_in=True, kind=DeviceKind.SIMULATED):
    """A node whose GPUs all reach each other."""
    made = FakeAgent(name, kind=kind, memory_bytes=gib * GIB, cpus=64, host_bytes=256 * GIB)
    made.devices = [
        FakeAgent.device(kind, gib * GIB, stand_in=stand_in, architecture="hopper") for _number in range(gpus)
    ]
    if nvlink:
        made.devices = [
            msgspec.structs.replace(
                one,
                nvlink=NvLinkFacts(links=18, active=18, version="4.0"),
                paths=[DevicePath(uuid=other.uuid, nvlinks=18) for other in made.devices if other is not one],
            )
            for one in made.devices
        ]
    made.join()
    made.report()
    return made


def deploy(tenant, version, replicas=1, *, endpoint="chat", priority=None, **config):
    return services.deploy_version(
        actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name=endpoint, model=version.model.name,
        version=version.number, config=config, replicas=replicas, priority=priority,
    )  # fmt: skip


def asked(tenant, version, **config):
    return fit(
        actor=actor_for(owner_of(tenant)), tenant=tenant, model=version.model.name, version=version.number,
        config=config,
    )  # fmt: skip


def row():
    with scope.all_tenants():
        return Replica.objects.get()


def members():
    with scope.all_tenants():
        return list(Member.objects.order_by("node__name"))


def settle():
    serving.run()
    cycle.run()


def test_links_make_domains():
    paths = {"a": ["b"], "b": ["a"], "c": ["d"], "d": ["c"], "e": []}
    devices = [
        topology.Linked(uuid.UUID(int=at), name, uuid.UUID(int=9), {"paths": [{"uuid": o, "nvlinks": 4} for o in to]})
        for at, (name, to) in enumerate(paths.items())
    ]
    found = topology.domains(devices)
    assert [found.get(uuid.UUID(int=at), "") for at in range(5)] == ["a", "a", "c", "c", ""]
    assert topology.link_of({"nvlink": {"active": 12, "version": "3.0"}}) == "NVLink 3"
    assert topology.link_of({"architecture": "hopper"}) == "PCIe 5.0 x16"
    assert topology.has_rdma({"rails": [{"active": False}, {"active": True}]})
    assert not topology.has_rdma({})


def test_a_fleet_as_hardware():
    nodes = [node(number, rdma=True) for number in (1, 2)]
    devices = [
        gpu(on * 10 + at, on, link_domain=f"{on}-{at // 4}", link="NVLink 4") for on in (1, 2) for at in range(8)
    ]
    snapshot = Snapshot({each.id: each for each in nodes}, tuple(devices))
    (kind,) = topology.kinds(snapshot.nodes, snapshot.devices, "cuda")
    assert (kind.domain, kind.domains, kind.nodes, kind.count) == (4, 2, 2, 16)
    assert (kind.link.name, kind.between.name, kind.fabric.name) == ("NVLink 4", "PCIe 5.0 x16", "RDMA 400 Gb/s")


def test_what_fits_on_one_device_is_not_spread(tenant, version):
    machine("one", gib=16)
    answer = asked(tenant, version, kv_cache_gib=10)
    assert answer.fits
    assert answer.need["devices"] == 1
    assert answer.need["parallel"] is None
    machine("two", gib=48)  # a larger product of the same kind: it is enough by itself
    answer = asked(tenant, version, kv_cache_gib=16)
    assert answer.fits
    assert answer.need["devices"] == 1


def test_tensor_parallelism_in_one_domain_from_the_dry_run_to_the_assignment(tenant, version):
    agent = machine("one", gpus=4, gib=16)
    answer = asked(tenant, version, kv_cache_gib=16)
    plan = answer.need["parallel"]
    assert answer.fits
    assert (answer.need["devices"], answer.need["stages"]) == (2, 1)
    assert plan["chosen"]["name"] == "TP2"
    assert plan["chosen"]["collectives"][0]["link"] == "NVLink 4"
    assert "TP2" in plan["sentence"]
    assert "all-reduce over NVLink 4" in plan["sentence"]
    assert {each["name"] for each in plan["rejected"]} >= {"one device", "TP4"}
    assert all(each["why_not"] for each in plan["rejected"])
    deploy(tenant, version, kv_cache_gib=16)
    settle()
    placed = row()
    assert (placed.state, placed.parallel["tensor"], placed.parallel["pipeline"]) == ("assigned", 2, 1)
    assert placed.explanation["need"]["parallel"]["chosen"]["name"] == "TP2"
    assert Partition.objects.count() == 2
    assert members() == []
    (given,) = agent.assignments().replicas
    assert (given.world.size, given.world.ranks, given.world.tensor) == (2, [0, 1], 2)
    assert given.world.leader == f"127.0.0.1:{placed.parallel['port']}"
    assert given.world.leads
    agent.cycle()
    assert row().state == "ready"
    services.delete_deployment(actor=actor_for(owner_of(tenant)), tenant=tenant, deployment=row().deployment)
    agent.cycle()
    agent.cycle()
    assert Partition.objects.count() == 0


def test_over_rest_the_plan_and_its_alternatives_are_shown(tenant, version):
    machine("one", gpus=4, gib=16)
    body = {"model": version.model.name, "version": str(version.number), "config": {"kv_cache_gib": 16}}
    answer = client_for(owner_of(tenant)).post("/api/v1/tenants/acme/fit", body, format="json").json()
    assert answer["need"]["parallel"]["chosen"]["tp"] == 2
    given = body | {"config": {"kv_cache_gib": 16, "tensor_parallel": 4}}
    answer = client_for(owner_of(tenant)).post("/api/v1/tenants/acme/fit", given, format="json").json()
    assert answer["fits"]
    assert answer["need"]["parallel"]["chosen"]["name"] == "TP4"
    wrong = body | {"config": {"tensor_parallel": 3, "kv_cache_gib": 1}}
    answer = client_for(owner_of(tenant)).post("/api/v1/tenants/acme/fit", wrong, format="json").json()
    assert (answer["fits"], answer["reason"]) == (False, "ParallelPlanImpossible")
    assert "TP3: 8 attention heads do not divide by 3" in answer["message"]
    assert answer["need"]["parallel"]["chosen"] is None


def mixture(tenant):
    """A checked version of four experts, two for each token."""
    wide = {
        **WIDE, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
        "num_experts_per_tok": 2,
    }  # fmt: skip
    values = {**catalog.CONFIG, **wide}
    hidden, inner = values["hidden_size"], values["intermediate_size"]
    shapes = {name: shape for name, shape in catalog.layer_shapes(values).items() if ".mlp." not in name}
    for layer in range(values["num_hidden_layers"]):
        block = f"model.layers.{layer}.block_sparse_moe."
        shapes[block + "gate.weight"] = [4, hidden]
        for expert in range(4):
            shapes |= {f"{block}experts.{expert}.{name}.weight": [inner, hidden] for name in ("w1", "w3")}
            shapes[f"{block}experts.{expert}.w2.weight"] = [hidden, inner]
    return catalog.checked_version(tenant, catalog.huggingface(wide, model__safetensors=catalog.weights(shapes)))


def test_experts_are_spread_when_it_is_asked_for(tenant):
    version = mixture(tenant)
    agent = machine("one", gpus=4, gib=16)
    answer = asked(tenant, version, kv_cache_gib=1, expert_parallel=4, tensor_parallel=2)
    chosen = answer.need["parallel"]["chosen"]
    assert answer.fits
    assert (chosen["name"], answer.need["devices"]) == ("TP2 x EP4", 4)
    assert chosen["collectives"][0]["name"] == "all-to-all"
    assert chosen["bytes_per_token"] > 0
    deploy(tenant, version, kv_cache_gib=1, expert_parallel=4, tensor_parallel=2)
    settle()
    (given,) = agent.assignments().replicas
    assert (given.world.size, given.world.tensor, given.world.expert) == (4, 2, 4)
    machine("real", gpus=4, gib=16, stand_in=False, kind=DeviceKind.CUDA)
    services.delete_deployment(actor=actor_for(owner_of(tenant)), tenant=tenant, deployment=row().deployment)
    agent.devices = []
    agent.cycle()
    agent.cycle()
    refused = asked(tenant, version, kv_cache_gib=1, expert_parallel=4)
    assert refused.reason == "ParallelPlanImpossible"
    assert "4 ranks are asked for" in refused.message


def test_experts_that_are_not_there_are_refused_by_name(tenant, version):
    machine("one")
    post = client_for(owner_of(tenant)).post
    body = {"model": version.model.name, "version": str(version.number), "config": {"expert_parallel": 2}}
    refused = post("/api/v1/tenants/acme/fit", body, format="json")
    assert (refused.status_code, refused.json()["data"]["field"]) == (400, "expert_parallel")
    assert "mixture-of-experts models, and this version is dense" in refused.json()["detail"]
    with pytest.raises(errors.InvalidInput, match="this version is dense"):
        deploy(tenant, version, expert_parallel=2)
    with pytest.raises(errors.InvalidInput, match="4 experts of this version do not divide by expert_parallel 3"):
        asked(tenant, mixture(tenant), expert_parallel=3)
    with pytest.raises(errors.InvalidInput, match="multiple of tensor_parallel"):
        configs.normalise({"expert_parallel": 3, "tensor_parallel": 2})


def test_without_nvlink_stages_unless_it_is_asked_for(tenant, version):
    machine("one", gpus=4, gib=16, nvlink=False)
    answer = asked(tenant, version, kv_cache_gib=16)
    assert answer.fits
    assert answer.need["parallel"]["chosen"]["name"] == "PP2"
    refused = next(each for each in answer.need["parallel"]["rejected"] if each["name"] == "TP2")
    assert "tensor parallelism over PCIe" in refused["why_not"]
    answer = asked(tenant, version, kv_cache_gib=16, tp_over_pcie=True)
    assert answer.fits
    assert answer.need["parallel"]["chosen"]["name"] == "TP2"


def test_an_engine_that_runs_on_one_device_is_not_spread(tenant, version):
    machine("real", gpus=4, gib=16, stand_in=False, kind=DeviceKind.CUDA)
    answer = asked(tenant, version, kv_cache_gib=16)
    assert (answer.fits, answer.reason) == (False, "ParallelPlanImpossible")
    assert "The causal engine runs a replica on one device" in answer.message
    assert "largest device has 16" in answer.message
    asked_for = asked(tenant, version, kv_cache_gib=1, tensor_parallel=2)
    assert asked_for.reason == "ParallelPlanImpossible"
    assert "2 ranks are asked for" in asked_for.message


def over_two_nodes(tenant, version):
    first, second = machine("one", gpus=2, gib=16), machine("two", gpus=2, gib=16)
    deploy(tenant, version, kv_cache_gib=24)
    settle()
    return first, second


def test_stages_on_several_nodes_all_or_nothing(tenant, version):
    first = machine("one", gpus=2, gib=16)
    deploy(tenant, version, kv_cache_gib=24)
    settle()
    assert row().state == "pending"
    assert Partition.objects.count() == 0
    second = machine("two", gpus=2, gib=16)
    settle()
    placed = row()
    assert placed.state == "assigned"
    assert "one" in placed.message
    assert "two" in placed.message
    assert (placed.parallel["tensor"], placed.parallel["pipeline"]) == (2, 2)
    assert len(members()) == 2
    assert Partition.objects.count() == 4
    one, two = (agent.assignments().replicas[0] for agent in (first, second))
    assert sorted([one.world.ranks, two.world.ranks]) == [[0, 1], [2, 3]]
    assert one.world.leader == two.world.leader
    assert [len(each.devices) for each in (one, two)] == [2, 2]
    assert {grant.uuid for grant in one.devices} == {device.uuid for device in first.devices}


def leader_and_follower(first, second):
    leads = first.assignments().replicas[0].world.leads
    return (first, second) if leads else (second, first)


def test_it_serves_only_while_every_node_does(tenant, version):
    leader, follower = leader_and_follower(*over_two_nodes(tenant, version))
    leader.cycle()
    assert (row().state, row().reason) == ("warming", "WaitingForRanks")
    assert FakeGateway().join().urls_of("chat") == []
    follower.cycle()
    leader.report()
    assert row().state == "ready"
    gateway = FakeGateway().join()
    assert gateway.urls_of("chat") == [row().address]
    (key,) = follower.replicas
    follower.change(key, Phase.FAILED, reason="EngineExited", message="killed")
    follower.report()
    leader.report()
    assert (row().state, row().reason) == ("failed", "RankFailed")
    assert "killed" in row().message
    follower.change(key, Phase.READY)
    follower.report()
    leader.report()
    assert row().state == "ready"


def test_each_node_frees_what_it_proves_free(tenant, version):
    leader, follower = leader_and_follower(*over_two_nodes(tenant, version))
    for agent in (leader, follower, leader):
        agent.cycle()
    services.scale(actor=actor_for(owner_of(tenant)), tenant=tenant, deployment=row().deployment, replicas=0)
    follower.report()  # has not read the order yet: proves nothing
    assert Partition.objects.count() == 4
    follower.cycle()
    assert Partition.objects.count() == 2
    assert row().state == "draining"
    assert follower.assignments().replicas == []
    leader.cycle()
    assert Partition.objects.count() == 0
    assert row().state == "stopped"
    assert members() == []


def test_a_lost_node_makes_all_of_it_unreachable_and_its_return_heals_it(tenant, version):
    leader, follower = leader_and_follower(*over_two_nodes(tenant, version))
    for agent in (leader, follower, leader):
        agent.cycle()
    assert row().state == "ready"
    lost = Node.objects.get(id=follower.id)
    Node.objects.filter(id=lost.id).update(state="lost", returns_to="ready")
    assert FakeGateway().join().urls_of("chat") == []  # fenced before any loop has run
    serving.run()
    with scope.all_tenants():
        first = Replica.objects.order_by("id").first()
    assert first.state == "unreachable"
    leader.report()
    first.refresh_from_db()
    assert first.state == "unreachable"
    assert Partition.objects.filter(replica_id=first.id).count() == 4
    follower.report()
    leader.report()
    first.refresh_from_db()
    assert first.state == "ready"


def test_a_node_that_is_removed_frees_its_own_and_the_other_is_asked(tenant, version):
    leader, follower = leader_and_follower(*over_two_nodes(tenant, version))
    for agent in (leader, follower, leader):
        agent.cycle()
    Node.objects.filter(id=leader.id).update(state="lost")
    fleet.remove(actor=actor_for(make_user(admin=True)), node=Node.objects.get(id=leader.id))
    placed = row()
    assert (placed.state, placed.recalled, str(placed.node_id)) == ("failed", True, follower.id)
    assert Partition.objects.count() == 2  # what the other node runs is not proved free yet
    (order,) = follower.assignments().replicas
    assert order.desired is Desired.STOP
    follower.cycle()
    placed = row()
    assert Partition.objects.count() == 0
    assert placed.node_id is None
    assert placed.generation == 2


def by_endpoint():
    with scope.all_tenants():
        rows = Replica.objects.select_related("deployment__endpoint").order_by("id")
        return {name: [row for row in rows if row.deployment.endpoint.name == name] for name in ("batch", "chat")}


def states():
    return {name: [row.state for row in rows] for name, rows in by_endpoint().items()}


def test_one_over_two_nodes_gives_way_to_one_over_two_nodes(tenant, version):
    first, second = machine("one", gpus=2, gib=16), machine("two", gpus=2, gib=16)
    deploy(tenant, version, endpoint="batch", priority="low", kv_cache_gib=24)
    settle()
    leader, follower = leader_and_follower(first, second)
    for agent in (leader, follower, leader):
        agent.cycle()
    assert states() == {"batch": ["ready"], "chat": []}
    deploy(tenant, version, priority="high", kv_cache_gib=24)
    settle()
    gone, next_ = by_endpoint()["batch"]
    assert (gone.state, gone.reason) == ("draining", "Preempted")
    assert next_.explanation["gave_way"] == gone.message
    assert by_endpoint()["chat"][0].reason == "MakingRoom"
    for agent in (first, second):
        assert [each.desired for each in agent.assignments().replicas] == [Desired.DRAIN]
    follower.cycle()  # one of two nodes is free: not enough, and nothing of it is given to anybody
    settle()
    assert states() == {"batch": ["draining", "pending"], "chat": ["pending"]}
    assert Partition.objects.count() == 2
    leader.cycle()
    settle()
    assert states() == {"batch": ["stopped", "pending"], "chat": ["assigned"]}
    assert Partition.objects.filter(replica_id=by_endpoint()["chat"][0].id).count() == 4
    settle()
    assert states() == {"batch": ["stopped", "pending"], "chat": ["assigned"]}


def test_several_on_several_nodes_give_way_to_one_over_all_of_them_or_stay(tenant, version):
    first, second = machine("one", gpus=2, gib=16), machine("two", gpus=2, gib=16)
    deploy(tenant, version, replicas=2, endpoint="batch", priority="low", kv_cache_gib=16)
    settle()
    for agent in (first, second):
        agent.cycle()
    kept = deploy(tenant, version, priority="normal", kv_cache_gib=24)
    services.scale(actor=actor_for(owner_of(tenant)), tenant=tenant, deployment=kept, priority="low")
    settle()
    assert states() == {"batch": ["ready", "ready"], "chat": ["pending"]}  # their equal: nobody goes
    services.scale(actor=actor_for(owner_of(tenant)), tenant=tenant, deployment=kept, priority="high")
    settle()
    assert states() == {"batch": ["draining", "draining", "pending", "pending"], "chat": ["pending"]}
    for agent in (first, second):
        agent.cycle()
    settle()
    assert states()["chat"] == ["assigned"]
    assert len(members()) == 2
    assert AuditEvent.objects.filter(action="replica.draining", reason="Preempted").count() == 2


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(errors.InvalidInput):
        configs.normalise({"tensor_parallel": 65})
    with pytest.raises(errors.InvalidInput):
        configs.normalise({"tp_over_pcie": "yes"})


def test_replicas_keep_apart_by_fault_domain(tenant):
    small = catalog.checked_version(tenant)
    admin = client_for(make_user(admin=True))
    for name, rack in (("one", "rack-a"), ("two", "rack-a"), ("three", "rack-b")):
        agent = FakeAgent(name)
        agent.join()
        agent.report()
        answer = admin.post(f"/api/v1/nodes/{agent.id}/fault-domain", {"name": rack}, format="json")
        assert answer.json()["fault_domain"] == rack
    deploy(tenant, small, replicas=2)
    settle()
    with scope.all_tenants():
        racks = {replica.node.fault_domain for replica in Replica.objects.select_related("node")}
    assert racks == {"rack-a", "rack-b"}
    where = f"/api/v1/nodes/{agent.id}/fault-domain"
    assert client_for(owner_of(tenant)).post(where, {"name": "x"}, format="json").status_code in (403, 404)
    assert admin.post(where, {"name": "x" * 81}, format="json").status_code == 400

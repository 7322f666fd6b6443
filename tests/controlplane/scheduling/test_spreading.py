"""Replicas over several devices and nodes: the plan for the fleet there is, its commit, its life, and what is shown."""

import uuid

import pytest

from catalog import configs
from fleet.models import Partition
from kernel import errors, scope
from runtime.wire.devices import DeviceKind
from scheduling import topology
from scheduling.ranks import ModelFacts
from scheduling.snapshot import Snapshot
from scheduling.spreading import Given, Spread, needs_for
from scheduling.whynot import Why
from serving import services
from serving.models import Replica
from tests.build import catalog
from tests.build.controlplane import actor_for, client_for, make_user, owner_of
from tests.build.fleets import gpu, need, node
from tests.build.machines import GIB, FakeAgent
from tests.build.spreads import WIDE, asked, deploy, described, machine, members, row, settle

pytestmark = pytest.mark.django_db


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
    some = [gpu(at, 1, link="PCIe 4.0 x16") for at in range(4)]  # two without a bridge, then a pair, then half of one
    some[2:] = [gpu(at, 1, link_domain="pair", link="NVLink 3") for at in (2, 3)]
    (kind,) = topology.kinds(snapshot.nodes, [*some, gpu(4, 1, link="NVLink 3")], "cuda")
    assert (kind.domain, kind.domains, kind.node_devices) == (2, 1, 5)
    assert (kind.link.name, kind.between.name) == ("NVLink 3", "PCIe 4.0 x16")


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
    assert "use tensor_parallel instead of expert_parallel" in refused.message


def test_experts_that_are_not_there_are_refused_by_name(tenant, version):
    machine("one")
    post = client_for(owner_of(tenant)).post
    body = {"model": version.model.name, "version": str(version.number), "config": {"expert_parallel": 2}}
    refused = post("/api/v1/tenants/acme/fit", body, format="json")
    assert (refused.status_code, refused.json()["data"]["field"]) == (400, "expert_parallel")
    assert "mixture-of-experts models, and this one is dense" in refused.json()["detail"]
    with pytest.raises(errors.InvalidInput, match="this one is dense"):
        deploy(tenant, version, expert_parallel=2)
    with pytest.raises(errors.InvalidInput, match="4 experts of this model do not divide by expert_parallel 3"):
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


def fit_of(tenant, version, **config):
    body = {"model": version.model.name, "version": str(version.number), "config": config}
    return client_for(owner_of(tenant)).post("/api/v1/tenants/acme/fit", body, format="json").json()


def ranks_by_two(agent):
    """Positions of the devices of ranks 0 and 1, and of ranks 2 and 3."""
    (given,) = agent.assignments().replicas
    assert given.world.ranks == [0, 1, 2, 3]
    at = {each.uuid: position for position, each in enumerate(agent.devices)}
    here = [at[each.uuid] for each in given.devices]
    return sorted(({*here[:2]}, {*here[2:]}), key=min, reverse=True)


def test_over_bridged_pairs_the_order_and_the_links(tenant, version, tmp_path):
    agent = described("pairs", tmp_path)
    inside = fit_of(tenant, version, kv_cache_gib=24)["need"]["parallel"]
    assert (inside["chosen"]["name"], inside["chosen"]["collectives"][0]["link"]) == ("TP2", "NVLink 3")
    assert {each["name"]: each["code"] for each in inside["rejected"]}["TP4"] == "TpOverPcie"
    staged = fit_of(tenant, version, kv_cache_gib=40, tp_over_pcie=True)["need"]["parallel"]
    assert staged["chosen"]["name"] == "TP2 x PP2"
    assert [each["link"] for each in staged["chosen"]["collectives"]] == ["NVLink 3", "PCIe 4.0 x16"]
    refused = fit_of(tenant, version, kv_cache_gib=40, tensor_parallel=4)
    assert (refused["fits"], refused["reason"], refused["need"]["parallel"]["code"]) == (
        False, "ParallelPlanImpossible", "TpOverPcie",
    )  # fmt: skip
    assert "TP4: tensor parallelism over PCIe 4.0 x16: 6144 bytes per token and rank" in refused["message"]
    assert refused["devices"][0]["plan_code"] == "TpOverPcie"
    assert refused["would_fit_if"] == "tp_over_pcie were set, or it were spread in stages (pipeline_parallel)"
    wide = fit_of(tenant, version, kv_cache_gib=40, tensor_parallel=4, tp_over_pcie=True)
    assert wide["fits"]
    assert wide["need"]["parallel"]["chosen"]["collectives"][0] | {"overlap": ""} == {
        "name": "all-reduce", "calls": 16, "bytes_per_token": 6144, "link": "PCIe 4.0 x16", "overlap": "",
    }  # fmt: skip
    deploy(tenant, version, kv_cache_gib=40, tensor_parallel=4, tp_over_pcie=True)
    settle()
    assert row().parallel | {"port": 0} == {"tensor": 4, "pipeline": 1, "expert": 1, "port": 0}
    assert ranks_by_two(agent) == [{1, 3}, {0, 2}]
    agent.cycle()
    assert row().state == "ready"


def test_where_both_domains_are_half_taken_tensor_parallelism_goes_over_pcie_if_it_may(tenant, version, tmp_path):
    agent = described("pairs", tmp_path)
    at = {each.uuid: position for position, each in enumerate(agent.devices)}

    def taken():
        """Of which bridged pair each of them is: 0 and 2 are one, 1 and 3."""
        return [
            at[uuid] % 2 for uuid in Partition.objects.order_by("created_at").values_list("device__uuid", flat=True)
        ]

    made = []
    for name in ("one", "two", "three"):
        made.append(
            services.deploy_version(
                actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name=name, model=version.model.name,
                version=version.number, config={"kv_cache_gib": 14}, replicas=1,
            )
        )  # fmt: skip
        settle()
    agent.cycle()
    first, second, third = taken()
    assert first == second != third
    services.stop(actor=actor_for(owner_of(tenant)), tenant=tenant, deployment=made[1])
    settle()
    agent.cycle()
    assert taken() == [first, third]
    assert not fit_of(tenant, version, kv_cache_gib=24, tensor_parallel=2)["fits"]
    wide = fit_of(tenant, version, kv_cache_gib=24, tensor_parallel=2, tp_over_pcie=True)
    assert wide["fits"]
    assert [each["link"] for each in wide["need"]["parallel"]["chosen"]["collectives"]] == ["PCIe 4.0 x16"]


@pytest.mark.parametrize(
    ("config", "world"),
    [({}, (2, 2)), ({"tensor_parallel": 4, "tp_over_pcie": True}, (4, 1))],
    ids=["stages of pairs", "over all of them"],
)
def test_real_pairs_of_one_node_run_all_ranks(tenant, version, tmp_path, config, world):
    agent = described("pairs", tmp_path, kind=DeviceKind.CUDA, stand_in=False)
    deploy(tenant, version, kv_cache_gib=40, **config)
    settle()
    assert (row().parallel["tensor"], row().parallel["pipeline"]) == world
    assert ranks_by_two(agent) == [{1, 3}, {0, 2}]


def test_what_would_help_goes_by_the_code_and_not_by_words(tenant, version):
    machine("real", gpus=4, gib=16, stand_in=False, kind=DeviceKind.CUDA)
    refused = asked(tenant, mixture(tenant), kv_cache_gib=1, expert_parallel=4)
    assert "divides experts" in refused.message  # and no other number of ranks would change that
    assert refused.would_fit_if == "another way were asked for, or none: one that works is chosen then"
    many = asked(tenant, version, kv_cache_gib=1, tensor_parallel=8)
    assert many.would_fit_if == "fewer ranks were asked for, or none: a number that works is chosen then"
    odd = asked(tenant, version, kv_cache_gib=1, tensor_parallel=3)
    assert odd.would_fit_if == "another number of ranks were asked for, or none: one that works is chosen then"


def test_where_only_tp_over_pcie_would_do_that_is_the_answer():
    """One layer cannot be staged, and a pair is too small."""
    model = ModelFacts(weights_bytes=60 * GIB, layers=1, heads=8, kv_heads=8, head_dim=64, hidden_size=512)
    devices = [gpu(at, 1, gib=24, link_domain=f"pair{at // 2}", link="NVLink 3") for at in range(4)]
    one = need("cuda", 70, 4, 4000)

    def planned(**given):
        spread = Spread(model, 64, GIB, 0.95, Given(**given), "causal")
        return needs_for(spread, {"cuda": one}, lambda kind: topology.kinds({node().id: node()}, devices, kind))

    refused = planned()["cuda"].unsupported
    assert refused.code is Why.TP_OVER_PCIE
    assert refused.sentence.startswith("TP4: tensor parallelism over PCIe 4.0 x16")
    (told,) = planned(over_pcie=True).values()
    assert (told.devices, told.linked, told.unsupported) == (4, False, None)


def test_real_devices_of_one_node_run_the_ranks_of_the_causal_engine(tenant, version):
    machine("real", gpus=4, gib=16, stand_in=False, kind=DeviceKind.CUDA)
    answer = asked(tenant, version, kv_cache_gib=16)
    assert answer.fits
    assert answer.need["parallel"]["chosen"]["name"] == "TP2"
    deploy(tenant, version, pipeline_parallel=2, tensor_parallel=2)
    settle()
    assert row().parallel | {"port": 0} == {"tensor": 2, "pipeline": 2, "expert": 1, "port": 0}
    assert [part.device.node_id for part in Partition.objects.select_related("device")] == [row().node_id] * 4


def test_stages_without_nvlink_are_devices_of_one_real_node(tenant, version):
    for name in ("one", "two"):
        machine(name, gpus=2, gib=16, nvlink=False, stand_in=False, kind=DeviceKind.CUDA)
    deploy(tenant, version, kv_cache_gib=16)
    settle()
    assert (row().parallel["tensor"], row().parallel["pipeline"]) == (1, 2)
    assert [part.device.node_id for part in Partition.objects.select_related("device")] == [row().node_id] * 2


def test_ranks_on_several_real_nodes_are_refused(tenant, version):
    for name in ("one", "two"):
        machine(name, gpus=2, gib=16, stand_in=False, kind=DeviceKind.CUDA)
    four = asked(tenant, version, kv_cache_gib=1, pipeline_parallel=4)
    assert (four.fits, four.reason) == (False, "ParallelPlanImpossible")


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

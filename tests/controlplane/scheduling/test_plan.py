"""The planner as tables: who goes where, and what a refusal says."""

import random
import uuid

import pytest

from catalog import configs
from catalog.estimate import Shape, estimate_shape
from scheduling.feasible import Reason, refuse
from scheduling.need import Need
from scheduling.plan import Ask, plan
from scheduling.snapshot import DeviceView, NodeView, Snapshot

GIB = 1024**3
DEPLOYMENT = uuid.UUID(int=77)


def node(number=1, **facts):
    values = {
        "id": uuid.UUID(int=number), "name": f"n{number}", "state": "ready", "memory_bytes": 64 * GIB,
        "memory_available_bytes": 60 * GIB, "held_host_bytes": 0, "millicpus": 8000, "held_millicpus": 0,
    }  # fmt: skip
    return NodeView(**{**values, **facts})


def device(number=1, on=1, **facts):
    values = {
        "id": uuid.UUID(int=1000 + number), "node_id": uuid.UUID(int=on), "uuid": f"d{number}", "kind": "cpu",
        "product": "Test CPU", "state": "healthy", "message": "", "present": True, "memory_bytes": 8 * GIB,
        "held_bytes": 0,
    }  # fmt: skip
    return DeviceView(**{**values, **facts})


def need(kind="cpu", gib=2.0, host_gib=2.0, millicpus=500):
    shape = Shape(
        parameters=1, layers=1, heads=1, kv_heads=1, head_dim=1, hidden_size=1, intermediate_size=1, vocab_size=1
    )  # fmt: skip
    sized = estimate_shape(shape, configs.DEFAULTS, max_positions=16)
    return Need(
        kind=kind, estimate=sized, memory_bytes=int(gib * GIB), host_bytes=int(host_gib * GIB), millicpus=millicpus
    )


NEEDS = {"cpu": need(), "cuda": need("cuda", 2, 1, 1000)}


def ask(number=1, **facts):
    values = {"replica_id": uuid.UUID(int=5000 + number), "generation": 1, "deployment_id": DEPLOYMENT, "needs": NEEDS}
    return Ask(**{**values, **facts})


def snapshot(nodes, devices):
    return Snapshot({each.id: each for each in nodes}, tuple(devices))


@pytest.mark.parametrize(
    ("where", "what", "reason", "words"),
    [
        (node(), device(), None, ""),
        (node(state="cordoned"), device(), Reason.NODE_CORDONED, "n1 is cordoned"),
        (node(state="draining"), device(), Reason.NODE_DRAINING, "being drained"),
        (node(state="drained"), device(), Reason.NODE_DRAINING, "being drained"),
        (node(state="lost"), device(), Reason.NODE_LOST, "does not answer"),
        (node(state="joining"), device(), Reason.NODE_NOT_READY, "has not reported"),
        (node(), device(kind="simulated"), Reason.SIMULATED_DEVICE, "no engine can run"),
        (node(), device(kind="tpu"), Reason.WRONG_DEVICE_KIND, "cpu or cuda"),
        (node(), device(present=False), Reason.DEVICE_MISSING, "does not report"),
        (node(), device(state="suspect", message="ECC"), Reason.DEVICE_UNHEALTHY, "suspect: ECC"),
        (node(), device(exclusive=True), Reason.DEVICE_TAKEN, "as a whole"),
        (node(), device(held_bytes=7 * GIB), Reason.INSUFFICIENT_DEVICE_MEMORY, "has 1.00 GiB free of 8.00 GiB"),
        (node(), device(held_bytes=6 * GIB), None, "exactly what is free fits"),
        (node(held_host_bytes=63 * GIB), device(), Reason.INSUFFICIENT_HOST_MEMORY, "1.00 GiB not promised to others"),
        (node(memory_available_bytes=GIB), device(), Reason.INSUFFICIENT_HOST_MEMORY, "1.00 GiB available right now"),
        (node(held_millicpus=7600), device(), Reason.INSUFFICIENT_CPU, "Needs 0.5 CPU; node n1 has 0.4 CPU left"),
    ],
)  # fmt: skip
def test_filters(where, what, reason, words):
    refusal = refuse(what, where, NEEDS)
    if reason is None:
        assert refusal is None
    else:
        assert (refusal.reason, words in refusal.message) == (reason, True), refusal.message


TIGHT_AND_WIDE = [device(1, 1, held_bytes=GIB), device(2, 2)]
FULL_AND_FREE = [device(1, 1, held_bytes=8 * GIB), device(2, 2)]


def chosen(nodes, devices, *asks):
    answers = plan(snapshot(nodes, devices), asks or [ask()])
    return [answer.chosen.uuid if answer.chosen else answer.reason for answer in answers]


@pytest.mark.parametrize(
    ("nodes", "devices", "want"),
    [
        pytest.param([node()], [device(1), device(2, held_bytes=4 * GIB)], "d2", id="the tightest fit"),
        pytest.param([node()], [device(1), device(2, kind="cuda")], "d2", id="a GPU before a CPU"),
        pytest.param([node(1, replicas={DEPLOYMENT: 1}), node(2)], TIGHT_AND_WIDE, "d2", id="spread before fit"),
        pytest.param([node(1), node(2, stored=frozenset({"w"}))], TIGHT_AND_WIDE, "d2", id="weights before fit"),
        pytest.param([node(1), node(2)], [device(2, 2), device(1, 1)], "d1", id="ties by name"),
        pytest.param([], [], "NoDevices", id="an empty fleet"),
        pytest.param([node(1), node(2, state="lost")], FULL_AND_FREE, "InsufficientDeviceMemory", id="the nearest"),
    ],
)  # fmt: skip
def test_ranking(nodes, devices, want):
    assert chosen(nodes, devices, ask(files=frozenset({"w"}))) == [want]


def test_where_it_failed_is_tried_last():
    nodes, devices = [node(1), node(2)], [device(1, 1), device(2, 2)]
    assert chosen(nodes, devices, ask(avoid=uuid.UUID(int=1))) == ["d2"]
    assert chosen(nodes[:1], devices[:1], ask(avoid=uuid.UUID(int=1))) == ["d1"]


def test_what_one_takes_is_gone_for_the_next():
    asks = [ask(number) for number in range(5)]
    assert chosen([node()], [device()], *asks) == ["d1"] * 4 + ["InsufficientDeviceMemory"]
    assert chosen([node(held_millicpus=7000)], [device()], *asks[:3]) == ["d1", "d1", "InsufficientCpu"]


def test_a_refusal_explains_itself_per_device_and_says_what_would_help():
    (answer,) = plan(snapshot([node(), node(2, state="cordoned")], [device(held_bytes=7 * GIB), device(2, 2)]), [ask()])
    told = answer.explanation()
    assert [row["reason"] for row in told["devices"]] == ["InsufficientDeviceMemory", "NodeCordoned"]
    assert told["would_fit_if"].startswith("1.00 GiB more were free on Test CPU of node n1")
    assert "None of 2 devices can take it (1 InsufficientDeviceMemory, 1 NodeCordoned)" in answer.message


def random_device(draw, number, nodes):
    kind = draw.choice(["cpu", "cuda", "simulated"])
    return device(number, draw.choice(nodes).id.int, held_bytes=draw.randrange(8 * GIB), kind=kind)


def random_ask(draw, number):
    needs = {"cpu": need(gib=draw.uniform(0.1, 4)), "cuda": need("cuda", draw.uniform(0.1, 4))}
    return ask(number, needs=needs)


@pytest.mark.parametrize("seed", range(50))
def test_random_fleets_are_never_over_committed_and_plans_repeat(seed):
    draw = random.Random(seed)
    states = ["ready", "ready", "ready", "lost"]
    nodes = [
        node(number, state=draw.choice(states), held_millicpus=draw.randrange(8001))
        for number in range(1, draw.randrange(2, 6))
    ]
    devices = [random_device(draw, number, nodes) for number in range(1, draw.randrange(2, 9))]
    asks = [random_ask(draw, number) for number in range(12)]
    answers = plan(snapshot(nodes, devices), asks)
    assert plan(snapshot(nodes, devices), asks) == answers
    assert all(answer.chosen or answer.reason for answer in answers)
    placed = [answer for answer in answers if answer.chosen]
    for each in devices:
        taken = sum(a.need.memory_bytes for a in placed if a.chosen.id == each.id)
        assert each.held_bytes + taken <= each.memory_bytes
        assert taken == 0 or each.kind != "simulated"
    for each in nodes:
        cpu = sum(a.need.millicpus for a in placed if a.chosen.node_id == each.id)
        assert each.held_millicpus + cpu <= each.millicpus
        assert cpu == 0 or each.state == "ready"

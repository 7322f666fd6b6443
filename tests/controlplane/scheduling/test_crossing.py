"""Stages that ended up further apart than the product could have them say so."""

import dataclasses

import pytest

from scheduling.crossing import as_placed
from scheduling.links import NVLINK4, all_reduce, send
from scheduling.parallel import Choice, Option
from scheduling.plan import plan
from tests.build.fleets import GIB, ask, gpu, need, node, snapshot

PLAN = Option(
    tp=2, pp=2, ep=1, weights_bytes=GIB, kv_budget_bytes=GIB, kv_tokens=1000, collectives=(send(2, 64, 2, NVLINK4),)
)
WANTED = need("cuda", 60, devices=2, stages=2, linked=True, choice=Choice(PLAN, ()))


def _fleet(domains, nodes):
    """Two GPUs for each of ``domains``, on one of ``nodes`` each."""
    return [
        gpu(2 * number + half, on=nodes[number], link_domain=name, link=NVLINK4.name)
        for number, name in enumerate(domains)
        for half in (0, 1)
    ]


@pytest.mark.parametrize(
    ("domains", "nodes", "rdma", "link"),
    [
        (["a", "a"], [1, 1], False, "NVLink 4"),
        (["a", "b"], [1, 1], False, "PCIe 5.0 x16"),
        (["a", "b"], [1, 2], False, "Ethernet 100 Gb/s"),
        (["a", "b"], [1, 2], True, "RDMA 400 Gb/s"),
    ],
)
def test_stages_say_what_they_really_cross(domains, nodes, rdma, link):
    machines = [node(number, millicpus=64_000, memory_bytes=999 * GIB, rdma=rdma) for number in sorted(set(nodes))]
    (answer,) = plan(snapshot(machines, _fleet(domains, nodes)), [ask(needs={"cuda": WANTED})])
    assert len(answer.places) == 4
    chosen = answer.need.choice.chosen
    assert [each.link.name for each in chosen.collectives] == [link]
    assert f"send/recv over {link}" in answer.explanation()["need"]["parallel"]["sentence"]


@pytest.mark.parametrize(
    ("domains", "link"), [(["a", "a"], "NVLink 4"), (["a", "b"], "PCIe 5.0 x16"), (["", ""], "PCIe 5.0 x16")]
)
def test_ranks_of_a_stage_say_what_they_really_cross(domains, link):
    """Each of the two on another GPU of a node."""
    sums = dataclasses.replace(PLAN, pp=1, collectives=(all_reduce(8, 2, 64, 2, NVLINK4),))
    wanted = need("cuda", 60, devices=2, choice=Choice(sums, ()))
    fleet = [gpu(at, link_domain=name, link=NVLINK4.name) for at, name in enumerate(domains)]
    (answer,) = plan(snapshot([node()], fleet), [ask(needs={"cuda": wanted})])
    assert [each.link.name for each in answer.need.choice.chosen.collectives] == [link]


def test_one_rank_stays_as_planned():
    one = dataclasses.replace(WANTED, stages=1, choice=Choice(dataclasses.replace(PLAN, pp=1), ()))
    assert as_placed(one, ()) is one
    assert as_placed(need("cuda", 1), ()).choice is None

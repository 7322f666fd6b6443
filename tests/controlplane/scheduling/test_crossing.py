"""Stages that ended up further apart than the product could have them say so."""

import dataclasses

import pytest

from scheduling.crossing import as_placed
from scheduling.links import NVLINK4, send
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


def test_what_is_not_in_stages_stays_as_planned():
    one = dataclasses.replace(WANTED, stages=1, choice=Choice(dataclasses.replace(PLAN, pp=1), ()))
    assert as_placed(one, ()) is one
    assert as_placed(need("cuda", 1), ()).choice is None

"""Which devices of a node a group gets where NVLink joins some of them: whole domains, and the others stay whole."""

import itertools
import random

import pytest

from scheduling import together
from scheduling.plan import plan
from tests.build.fleets import ask, gpu, need, node, snapshot


def four(**facts):
    return need("cuda", 20, 4, 4000, devices=4, **facts)


@pytest.mark.parametrize(
    ("domains", "wanted", "want"),
    [
        pytest.param("aabb", {}, (0, 1, 2, 3), id="two pairs"),
        pytest.param("abab", {}, (0, 2, 1, 3), id="pairs stand beside each other, wherever they are in the machine"),
        pytest.param("aabbc", {}, (0, 1, 2, 3), id="the fewest domains of what costs as much"),
        pytest.param("aabcdd", {}, (0, 1, 2, 3), id="what has no partner before what has one: d stays whole"),
        pytest.param("aaaabbcc", {}, (4, 5, 6, 7), id="pairs before a quad"),
        pytest.param("aabb..", {}, (0, 1, 4, 5), id="devices without a bridge before the second pair"),
        pytest.param("....", {}, (0, 1, 2, 3), id="no bridges"),
        pytest.param("aab", {}, None, id="too few"),
        pytest.param("abacbb", {"linked": True, "linked_by": 2}, (0, 2, 1, 4), id="whole pairs only"),
        pytest.param("aabcd", {"linked": True, "linked_by": 2}, None, id="too few pairs"),
        pytest.param("aaaa..", {"linked": True, "linked_by": 2}, (0, 1, 2, 3), id="two pairs of a quad"),
        pytest.param("aabbbb", {"linked": True}, (2, 3, 4, 5), id="all in one domain"),
        pytest.param("aabb", {"linked": True}, None, id="no domain holds all"),
    ],
)
def test_devices_of_one_node(domains, wanted, want):
    names = ["" if letter == "." else letter for letter in domains]
    able = {name: [at for at, each in enumerate(names) if each == name] for name in dict.fromkeys(names)}
    found = together.sets(able, four(**wanted), [1000] * len(names))
    assert found == ([want] if want else [])
    counts = {name: len(members) for name, members in able.items()}
    assert (together.most(counts, four(**wanted)) >= 4) is bool(want)


def test_the_tightest_of_equals():
    able = {"a": [0, 1], "b": [2, 3], "c": [4, 5]}
    assert together.sets(able, four(), [1000, 1000, 600, 1000, 1000, 500]) == [(2, 3, 5, 4)]


def _lost(members, chosen):
    left = len(set(members) - set(chosen))
    return together.whole(len(members)) - together.whole(left)


@pytest.mark.parametrize("seed", range(40))
def test_no_other_choice_keeps_more_whole(seed):
    draw = random.Random(seed)
    names = [draw.choice(["", "a", "b", "c", "d"]) for _device in range(draw.randint(3, 9))]
    able = {name: [at for at, each in enumerate(names) if each == name] for name in dict.fromkeys(names)}
    groups = [members for name, members in able.items() if name] + [[at] for at in able.get("", ())]
    wanted = need("cuda", devices=draw.randint(2, len(names)))
    (chosen,) = together.sets(able, wanted, [draw.randint(1, 9) for _name in names])
    assert len(set(chosen)) == wanted.devices
    least = min(
        sum(_lost(members, each) for members in groups)
        for each in itertools.combinations(range(len(names)), wanted.devices)
    )
    assert sum(_lost(members, chosen) for members in groups) == least


def test_a_wide_group_leaves_the_other_pairs_to_those_who_need_them():
    pairs = [gpu(number, link_domain=f"pair{(number - 1) // 2}") for number in range(1, 9)]
    wide = ask(1, needs={"cuda": four()})
    pair = ask(2, needs={"cuda": need("cuda", 70, 4, 4000, devices=2, linked=True)})
    busy = [each if each.uuid not in {"d1", "d4"} else gpu(int(each.uuid[1:]), link_domain=each.link_domain,
            held_bytes=each.memory_bytes, exclusive=True) for each in pairs]  # fmt: skip
    fleet = snapshot([node(millicpus=64_000)], busy)
    first, *rest = plan(fleet, [wide, pair, pair])
    assert [place.device.uuid for place in first.places] == ["d2", "d3", "d5", "d6"]
    assert [[place.device.uuid for place in each.places] for each in rest] == [["d7", "d8"], []]
    assert plan(fleet, [wide, pair, pair])[0].places == first.places


def test_stages_of_pairs_as_one_group():
    pairs = [gpu(number, link_domain=f"pair{number % 2}") for number in range(1, 5)]
    staged = ask(1, needs={"cuda": four(linked=True, linked_by=2)})
    (answer,) = plan(snapshot([node(millicpus=64_000)], pairs), [staged])
    assert [place.device.uuid for place in answer.places] == ["d1", "d3", "d2", "d4"]
    (refused,) = plan(snapshot([node(millicpus=64_000)], pairs[:3]), [staged])
    assert refused.reason == "NotEnoughDevices"
    assert "Needs 4 devices together in groups of 2 over NVLink; node n1 has 2 that could." in refused.message


@pytest.mark.parametrize(
    ("domains", "products", "want"),
    [
        pytest.param("abab", "1111", ["d0", "d2"], id="the partner of one that is taken"),
        pytest.param("ab.ab", "11111", ["d2", "d0", "d3"], id="first what has no partner"),
        pytest.param("abab", "2111", ["d0", "d2"], id="of several products too"),
        pytest.param("aaaa", "1111", ["d0", "d1"], id="where one domain has all there is nothing to keep"),
    ],
)
@pytest.mark.parametrize("kind", ["cuda", "simulated"])
def test_what_needs_one_device_leaves_pairs_whole(kind, domains, products, want):
    gpus = [
        gpu(at, kind=kind, stand_in=True, link_domain=name.strip("."), product=f"A{type_}", gib=80)
        for at, (name, type_) in enumerate(zip(domains, products, strict=True))
    ]
    one = {kind: need(kind, 70, 4, 4000, whole=True)}
    answers = plan(snapshot([node(millicpus=64_000)], gpus), [ask(at, needs=one) for at in range(len(want))])
    assert [answer.chosen.uuid for answer in answers] == want

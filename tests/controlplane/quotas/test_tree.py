"""Quotas as a tree, fair shares, and what a part of a GPU counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.amount import UNLIMITED, ZERO, Amount, Kind, Line
from quotas.tree import Claim, Pool, fair_shares
from quotas.weights import device_millis, part_millis

small = st.integers(min_value=0, max_value=50)
limits = st.one_of(st.just(-1), small)


@st.composite
def trees(draw):
    """A platform with groups and tenants, two levels deep."""
    numbers = iter(range(1000))

    def pool(children=()):
        name = f"p{next(numbers)}"
        used = Amount.of(draw(small)) if not children else ZERO
        return Pool(
            name=name, limit=Amount.limit(draw(limits)), guaranteed=Amount.limit(draw(limits)), used=used,
            children=tuple(children),
        )  # fmt: skip

    groups = [pool([pool() for _ in range(draw(st.integers(1, 3)))]) for _ in range(draw(st.integers(1, 3)))]
    return pool([*groups, pool()])


def leaves(tree):
    return [each for each in tree.walk() if not each.children]


@given(tree=trees(), data=st.data())
def test_what_is_left_can_be_taken_without_exceeding_any_pool_and_not_one_more(tree, data):
    leaf = data.draw(st.sampled_from(leaves(tree)))
    left = tree.left(leaf.name)
    path = [each.name for each in tree.path(leaf.name)]
    if left.unlimited:
        assert all(each.limit.unlimited for each in tree.path(leaf.name))
        return
    over = {each.name for each in tree.walk() if not each.limit.covers(each.held)}
    after = tree.taking(leaf.name, left)
    assert {each.name for each in after.walk() if not each.limit.covers(each.held)} == over
    more = after.taking(leaf.name, Amount.of(1))
    assert any(not each.limit.covers(each.held) for each in more.walk() if each.name in path)


@given(tree=trees())
def test_what_is_held_adds_up_and_nobody_is_entitled_above_a_pool(tree):
    assert tree.held.number == sum(leaf.used.number for leaf in leaves(tree))
    for each in tree.walk():
        assert all(above.limit.covers(tree.entitled(each.name)) for above in tree.path(each.name))
        assert each.held.covers(tree.borrowed(each.name))


def test_a_group_that_promises_more_than_it_may_hold_is_named():
    members = tuple(Pool(name=name, guaranteed=Amount.of(3)) for name in ("a", "b"))
    assert Pool(name="g", limit=Amount.of(6), children=members).broken_promises() == []
    tight = Pool(name="g", limit=Amount.of(5), children=members)
    assert tight.broken_promises() == [tight]
    with pytest.raises(KeyError):
        tight.left("stranger")


claims = st.dictionaries(
    st.sampled_from("abcdef"),
    st.builds(Claim, wanted=st.integers(0, 60), guaranteed=st.integers(0, 40), weight=st.integers(0, 5)),
    max_size=6,
)


@given(capacity=st.integers(0, 200), wanted=claims)
def test_fair_shares_keep_guarantees_and_waste_nothing(capacity, wanted):
    shares = fair_shares(capacity, wanted)
    assert sum(shares.values()) <= capacity
    firm = {name: min(claim.wanted, claim.guaranteed) for name, claim in wanted.items()}
    assert all(shares[name] <= claim.wanted for name, claim in wanted.items())
    if sum(firm.values()) <= capacity:
        assert all(shares[name] >= firm[name] for name in wanted)
        hungry = [name for name, claim in wanted.items() if claim.weight and shares[name] < claim.wanted]
        assert not hungry or sum(shares.values()) == capacity


def test_what_is_left_over_goes_by_weight():
    claims = {"a": Claim(wanted=100, guaranteed=10, weight=3), "b": Claim(wanted=100, guaranteed=10, weight=1)}
    assert fair_shares(100, claims) == {"a": 70, "b": 30}
    assert fair_shares(100, {**claims, "b": Claim(wanted=15, guaranteed=10)}) == {"a": 85, "b": 15}


@pytest.mark.parametrize(
    ("guaranteed", "limit", "used", "borrowed"),
    [(4, -1, 10, 6), (4, 20, 3, 0), (-1, 5, 10, 0), (-1, -1, 10, 0), (8, 5, 10, 5)],
)
def test_borrowed_is_what_is_held_above_the_guarantee(guaranteed, limit, used, borrowed):
    line = Line(Kind.GPU_MILLIS, Amount.of(used), Amount.limit(limit), Amount.limit(guaranteed))
    assert line.borrowed == Amount.of(borrowed)
    assert Line(Kind.REPLICAS, Amount.of(1), Amount.of(9), UNLIMITED, left_above=Amount.of(2)).left == Amount.of(2)


@pytest.mark.parametrize(
    ("kind", "slices", "of", "want"),
    [("cuda", 0, 7, 1000), ("cuda", 1, 7, 143), ("cuda", 3, 7, 429), ("cuda", 7, 7, 1000), ("cuda", 2, 4, 500),
     ("simulated", 0, 7, 1000), ("cpu", 0, 7, 0)],
)  # fmt: skip
def test_what_a_device_counts(kind, slices, of, want):
    assert device_millis(kind, slices, of) == want


@given(parts=st.lists(st.integers(1, 80), min_size=1, max_size=8))
def test_parts_of_a_gpu_never_cost_less_than_they_take(parts):
    total = sum(parts)
    assert sum(part_millis(1000, part, total) for part in parts) >= 1000
    assert part_millis(1000, 1, 80, whole=True) == 1000
    assert part_millis(1000, 8, 80, compute=500) == 500
    assert part_millis(0, 8, 80) == 0

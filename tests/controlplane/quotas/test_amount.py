"""The arithmetic of quotas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.amount import UNLIMITED, ZERO, Amount, Kind, Line

counts = st.integers(min_value=0, max_value=2**62)
limits = st.one_of(st.just(-1), counts)


@pytest.mark.parametrize("number", [-1, -5])
def test_a_count_is_never_negative(number):
    with pytest.raises(ValueError):
        Amount.of(number)


def test_a_limit_of_minus_one_is_unlimited_and_below_is_refused():
    assert Amount.limit(-1) is UNLIMITED
    with pytest.raises(ValueError):
        Amount.limit(-2)


def test_bare_operators_do_not_work():
    with pytest.raises(TypeError):
        Amount.of(1) + Amount.of(1)
    with pytest.raises(TypeError):
        assert Amount.of(1) < Amount.of(2)


@given(limit=limits, used=counts, asked=counts)
def test_what_is_allowed_never_exceeds_the_limit(limit, used, asked):
    line = Line(Kind.HBM_BYTES, Amount.of(used), Amount.limit(limit))
    fits = limit == -1 or used + asked <= limit or asked == 0
    assert line.allows(Amount.of(asked)) == fits


@given(limit=limits, used=counts)
def test_what_is_left_can_be_taken_and_not_one_more(limit, used):
    line = Line(Kind.REPLICAS, Amount.of(used), Amount.limit(limit))
    if line.left.unlimited:
        assert limit == -1
        return
    assert line.allows(line.left)
    assert not line.allows(line.left.plus(Amount.of(1)))


@given(left=limits, right=limits)
def test_plus_commutes_and_keeps_unlimited(left, right):
    one, other = Amount.limit(left), Amount.limit(right)
    assert one.plus(other) == other.plus(one)
    assert one.plus(other).unlimited == (left == -1 or right == -1)
    assert one.plus(ZERO) == one


def test_nothing_may_be_asked_above_a_lowered_limit_but_nothing_is_nothing():
    line = Line(Kind.STORAGE_BYTES, Amount.of(10), Amount.limit(4))
    assert line.left == ZERO
    assert line.fraction == 2.5
    assert line.allows(ZERO)
    assert not line.allows(Amount.of(1))


@pytest.mark.parametrize(
    ("used", "limit", "want_fraction"),
    [
        pytest.param(0, 0, 1.0, id="nothing of nothing is full"),
        pytest.param(1, -1, None, id="no fraction of unlimited"),
        pytest.param(1, 4, 0.25, id="a quarter"),
    ],
)
def test_fraction(used, limit, want_fraction):
    assert Line(Kind.REPLICAS, Amount.of(used), Amount.limit(limit)).fraction == want_fraction

"""Who is lost: the rule, and the loop that applies it."""

import datetime
import uuid

import pytest

from fleet import leases, selectors
from fleet.leases import Verdict, Watched, judge
from fleet.models import Node
from kernel import clock
from ledger import generations
from tests.build.machines import FakeAgent

NOW = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
LEASE = datetime.timedelta(seconds=20)


def watched(seconds_silent):
    seen = NOW - datetime.timedelta(seconds=seconds_silent)
    return Watched(uuid.uuid4(), seen, seen + LEASE)


@pytest.mark.parametrize(
    ("silences", "want", "expired"),
    [
        pytest.param([1, 1, 1], Verdict.EXPIRE, 0, id="all answer"),
        pytest.param([21], Verdict.EXPIRE, 1, id="the only node"),
        pytest.param([20], Verdict.EXPIRE, 1, id="at the very end of the lease"),
        pytest.param([19], Verdict.EXPIRE, 0, id="within the lease"),
        pytest.param([21, 22], Verdict.EXPIRE, 2, id="two of two are not a mass"),
        pytest.param([21, 21, 21], Verdict.HOLD, 3, id="three of three"),
        pytest.param([21, 21, 21, 1, 1, 1], Verdict.HOLD, 3, id="exactly half"),
        pytest.param([21, 21, 21, 1, 1, 1, 1], Verdict.EXPIRE, 3, id="less than half"),
        pytest.param([21, 18, 15, 1, 1], Verdict.HOLD, 1, id="the first of many to expire"),
        pytest.param([21, 9, 9, 9], Verdict.EXPIRE, 1, id="late is not silent"),
        pytest.param([], Verdict.EXPIRE, 0, id="no nodes"),
    ],
)
def test_the_rule(silences, want, expired):
    judgement = judge([watched(seconds) for seconds in silences], now=NOW, lease=LEASE)
    assert (judgement.verdict, len(judgement.expired)) == (want, expired)


def later(seconds):
    return clock.frozen(NOW + datetime.timedelta(seconds=seconds))


def agents(count):
    made = []
    for _ in range(count):
        agent = FakeAgent()
        agent.join()
        agent.report()
        made.append(agent)
    return made


def run_until(seconds, alive=()):
    for moment in range(2, seconds + 1, 2):
        with later(moment):
            for agent in alive:
                agent.report()
            leases.expire()


@pytest.mark.django_db
def test_a_silent_node_is_lost_and_comes_back_as_it_was():
    with later(0):
        (agent,) = agents(1)
        leases.expire()
        Node.objects.update(state="cordoned")
        before = generations.current(generations.ROUTES)
    run_until(22)
    node = Node.objects.get()
    assert (node.state, node.reason) == ("lost", "LeaseExpired")
    assert "12:00:00" in node.message
    assert generations.current(generations.ROUTES) > before
    with later(24):
        agent.report()
    assert Node.objects.get().state == "cordoned"


@pytest.mark.django_db
def test_mass_silence_declares_nothing_and_says_so():
    with later(0):
        agents(4)
        leases.expire()
    run_until(30)
    assert {node.state for node in Node.objects.all()} == {"ready"}
    with later(30):
        condition = selectors.conditions()[0]
    assert (condition.type, condition.status, condition.reason) == ("MassSilence", True, "ManyNodesSilent")
    assert condition.message.startswith("4 of 4 nodes fell silent")


@pytest.mark.django_db
def test_one_of_four_is_lost():
    with later(0):
        *alive, silent = agents(4)
        leases.expire()
    run_until(24, alive)
    assert [node.name for node in Node.objects.filter(state="lost")] == [silent.name]


@pytest.mark.django_db
def test_silence_while_nobody_listened_proves_nothing():
    with later(0):
        agents(1)
        leases.expire()
    with later(300):  # the control plane was down
        leases.expire()
    assert Node.objects.get().state == "ready"
    with later(302):
        leases.expire()
    assert Node.objects.get().state == "ready"
    for moment in range(304, 324, 2):
        with later(moment):
            leases.expire()
    assert Node.objects.get().state == "lost"

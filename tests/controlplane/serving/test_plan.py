"""The plan of a deployment, as tables: replicas in, steps out."""

import datetime
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.reconcile.plan import PATIENCE, Do, ReplicaView, backoff, plan
from serving.states import ReplicaState

NOW = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
MINUTE = datetime.timedelta(minutes=1)


def replica(number, state, node="ready", *, age=MINUTE, **facts):
    placed = state not in ("pending", "stopped") and node
    return ReplicaView(
        id=uuid.UUID(int=number), state=ReplicaState(state), since=NOW - age, node_state=node if placed else "", **facts
    )


def steps(replicas, target, deleting=False):
    made = plan(replicas, target=target, deleting=deleting, now=NOW)
    return {step.replica_id.int: step.do.value for step in made.steps}, made.create


@pytest.mark.parametrize(
    ("replicas", "target", "want", "create"),
    [
        pytest.param([], 2, {}, 2, id="nothing yet"),
        pytest.param([replica(1, "ready"), replica(2, "ready")], 2, {}, 0, id="as wanted"),
        pytest.param([replica(1, "ready"), replica(2, "ready")], 1, {2: "drain"}, 0, id="the newest goes first"),
        pytest.param([replica(1, "loading"), replica(2, "ready")], 1, {1: "drain"}, 0, id="not ready before ready"),
        pytest.param([replica(1, "degraded"), replica(2, "ready")], 1, {1: "drain"}, 0, id="degraded before ready"),
        pytest.param([replica(1, "asleep"), replica(2, "ready")], 1, {1: "drain"}, 0, id="asleep before awake"),
        pytest.param([replica(1, "asleep"), replica(2, "asleep")], 2, {}, 0, id="asleep is as wanted"),
        pytest.param([replica(1, "ready"), replica(2, "pending")], 1, {2: "drain"}, 0, id="pending before ready"),
        pytest.param([replica(1, "draining"), replica(2, "ready")], 2, {}, 1, id="draining does not count"),
        pytest.param([replica(1, "ready"), replica(2, "ready")], 0, {1: "drain", 2: "drain"}, 0, id="none wanted"),
        pytest.param([replica(1, "ready", "lost")], 1, {1: "unreach"}, 1, id="lost: replaced, not drained"),
        pytest.param([replica(1, "unreachable", "lost"), replica(2, "ready")], 1, {}, 0, id="lost and replaced"),
        pytest.param([replica(1, "unreachable", "lost")], 0, {1: "drain"}, 0, id="lost and not wanted"),
        pytest.param([replica(1, "draining", "lost")], 1, {}, 1, id="lost while draining: its place stays taken"),
        pytest.param([replica(1, "ready", "removed")], 1, {1: "lose"}, 0, id="its node was removed"),
        pytest.param([replica(1, "draining", "removed")], 0, {1: "abandon"}, 0, id="removed while draining"),
        pytest.param([replica(1, "failed", age=PATIENCE / 2)], 1, {}, 0, id="failed: its agent tries"),
        pytest.param([replica(1, "failed", age=PATIENCE)], 1, {1: "recall"}, 0, id="failed for too long"),
        pytest.param([replica(1, "failed", recalled=True)], 1, {}, 0, id="recalled: wait for the node"),
        pytest.param([replica(1, "failed", "", retry_at=NOW + MINUTE)], 1, {}, 0, id="backing off"),
        pytest.param([replica(1, "failed", "", retry_at=NOW)], 1, {1: "retry"}, 0, id="back-off is over"),
        pytest.param([replica(1, "ready", "draining")], 1, {}, 1, id="leaving: a successor first"),
        pytest.param(
            [replica(1, "ready", "draining"), replica(2, "loading")], 1, {}, 0, id="leaving: the successor is not ready"
        ),
        pytest.param(
            [replica(1, "ready", "draining"), replica(2, "ready")], 1, {1: "drain"}, 0, id="leaving: successor ready"
        ),
        pytest.param(
            [replica(1, "ready", "draining"), replica(2, "ready", "draining"), replica(3, "ready")],
            2, {2: "drain"}, 1, id="leaving: one by one",
        ),
        pytest.param([replica(1, "loading", "draining")], 1, {1: "drain"}, 1, id="leaving: not serving"),
        pytest.param(
            [replica(1, "ready", "draining", node_accepts_gap=True)], 1, {1: "drain"}, 1, id="leaving: gap accepted"
        ),
        pytest.param([replica(1, "ready", "cordoned")], 1, {}, 0, id="a cordoned node goes on"),
        pytest.param(
            [replica(1, "ready"), replica(2, "ready", "removed")], 1, {2: "lose"}, 0, id="the lost one goes first"
        ),
        pytest.param(
            [replica(1, "ready", "draining"), replica(2, "ready", "removed")], 1, {2: "lose"}, 0, id="no successor"
        ),
        pytest.param(
            [replica(1, "stopped", age=datetime.timedelta(hours=2)), replica(2, "stopped")], 0, {1: "forget"}, 0,
            id="old rows are forgotten",
        ),
    ],
)  # fmt: skip
def test_steps(replicas, target, want, create):
    assert steps(replicas, target) == (want, create)


def test_a_deployment_is_finished_when_everything_has_stopped():
    assert plan([replica(1, "stopped")], target=0, deleting=True, now=NOW).finished
    assert plan([], target=0, deleting=True, now=NOW).finished
    assert not plan([replica(1, "draining")], target=0, deleting=True, now=NOW).finished
    assert not plan([], target=0, deleting=False, now=NOW).finished


def test_few_stopped_rows_are_kept():
    rows = [replica(number, "stopped", age=MINUTE * (20 - number)) for number in range(1, 13)]
    assert steps(rows, 0)[0] == {1: "forget", 2: "forget"}


def test_backoff_doubles_and_is_bounded():
    assert [backoff(n).total_seconds() for n in (0, 1, 2, 3, 9, 1000)] == [2, 2, 4, 8, 300, 300]


PLACED = [
    "assigned",
    "fetching",
    "loading",
    "warming",
    "ready",
    "degraded",
    "asleep",
    "failed",
    "unreachable",
    "draining",
]
NODES = ["ready", "cordoned", "draining", "lost", "removed"]


def test_one_too_many_is_told_what_is_true_of_it():
    """Its node came back, or was removed while a successor serves: nobody has scaled down."""
    back = plan([replica(1, "ready"), replica(2, "ready")], target=1, deleting=False, now=NOW)
    gone = plan([replica(1, "failed", "", ended=True), replica(2, "ready")], target=1, deleting=False, now=NOW)
    told = [(step.replica_id.int, step.do, step.reason, step.message) for each in (back, gone) for step in each.steps]
    assert told == [
        (2, Do.DRAIN, "Surplus", "More replicas run than are wanted; this one ends."),
        (1, Do.DRAIN, "NodeRemoved", "Its node was removed from the fleet."),
    ]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.sampled_from(PLACED), st.sampled_from(NODES)), max_size=8),
    st.integers(0, 4),
)
def test_what_serves_on_an_answering_node_is_never_drained_below_what_is_wanted(rows, target):
    replicas = [replica(number, state, node) for number, (state, node) in enumerate(rows, 1)]
    made, _ = steps(replicas, target)
    serving = [
        r
        for r in replicas
        if r.state in ("ready", "degraded", "asleep") and r.node_state in ("ready", "cordoned", "draining")
    ]
    left = [r for r in serving if made.get(r.id.int) != Do.DRAIN]
    assert len(left) >= min(len(serving), target)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.sampled_from(PLACED), st.sampled_from(NODES)), max_size=8),
    st.integers(0, 4),
)
def test_a_plan_asks_for_enough_and_never_for_too_much(rows, target):
    rows = [(state, node) for state, node in rows if node != "removed"]  # those start over first
    replicas = [replica(number, state, node, recalled=True) for number, (state, node) in enumerate(rows, 1)]
    made, create = steps(replicas, target)
    staying = [
        r for r in replicas
        if r.state not in ("draining", "unreachable") and r.node_state in ("ready", "cordoned")
        and made.get(r.id.int) != Do.DRAIN
    ]  # fmt: skip
    assert len(staying) + create == target

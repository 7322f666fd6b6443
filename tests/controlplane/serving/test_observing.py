"""What a report does to a row, as a table."""

import uuid

import pytest

from serving.models import Replica
from serving.observing import Observation, decide

HERE = uuid.UUID(int=1)


def row(state, **facts):
    return Replica(**{"id": HERE, "state": state, "generation": 3, "node_generation": 10, **facts})


def seen(phase, **facts):
    values = {"replica_id": HERE, "generation": 3, "phase": phase, "address": "http://a:1", **facts}
    return Observation(**values)


@pytest.mark.parametrize(
    ("before", "report", "applied", "effect", "to"),
    [
        pytest.param(row("assigned"), seen("fetching"), 10, "move", "fetching", id="on its way"),
        pytest.param(row("assigned"), seen("ready"), 10, "move", "ready", id="steps may be skipped"),
        pytest.param(row("ready"), seen("ready"), 10, "measure", "ready", id="nothing new"),
        pytest.param(row("ready"), seen("degraded"), 10, "move", "degraded", id="gets worse"),
        pytest.param(row("ready"), seen("asleep"), 10, "move", "asleep", id="falls asleep"),
        pytest.param(row("asleep"), seen("ready"), 10, "move", "ready", id="wakes"),
        pytest.param(row("asleep"), seen("asleep", address=""), 10, "move", "warming", id="asleep without address"),
        pytest.param(row("ready"), seen("loading"), 10, "move", "loading", id="the agent started it again"),
        pytest.param(row("failed"), seen("fetching"), 10, "move", "fetching", id="the agent tries again"),
        pytest.param(row("unreachable"), seen("ready"), 10, "move", "ready", id="reachable again"),
        pytest.param(row("ready"), seen("failed", generation=2), 10, "ignore", None, id="an older generation"),
        pytest.param(row("ready"), seen("failed", generation=4), 10, "ignore", None, id="a generation nobody gave"),
        pytest.param(row("loading"), seen("ready", address=""), 10, "move", "warming", id="ready without address"),
        pytest.param(row("draining"), seen("ready"), 10, "measure", None, id="draining is not taken back"),
        pytest.param(row("draining"), seen("stopped"), 10, "gone", None, id="drained"),
        pytest.param(row("draining"), seen("stopped"), 9, "ignore", None, id="stopped before it read the order"),
        pytest.param(row("draining"), None, 10, "gone", None, id="drained and forgotten"),
        pytest.param(row("draining"), None, 9, "ignore", None, id="absent before it read the order"),
        pytest.param(row("failed", recalled=True), None, 10, "given_up", None, id="given up"),
        pytest.param(row("failed", recalled=True), seen("stopped"), 10, "given_up", None, id="given up, still listed"),
        pytest.param(row("failed", recalled=True), seen("ready"), 10, "measure", None, id="recalled is not taken back"),
        pytest.param(row("failed", recalled=True), None, 9, "ignore", None, id="recalled and not read yet"),
        pytest.param(row("assigned"), None, 10, "ignore", None, id="not picked up yet"),
        pytest.param(row("ready"), None, 10, "move", "failed", id="vanished"),
        pytest.param(row("ready"), seen("stopped"), 10, "move", "failed", id="ended unasked"),
        pytest.param(row("ready"), seen("draining"), 10, "measure", None, id="the node is ending it"),
    ],
)
def test_decide(before, report, applied, effect, to):
    decision = decide(before, report, applied_generation=applied)
    assert (decision.effect.value, decision.to and decision.to.value) == (effect, to)

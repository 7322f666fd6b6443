"""The word, the sentence and the conditions of a deployment."""

import pytest

from serving.conditions import WORDS, Facts, health
from serving.states import ReplicaState


def facts(*states):
    return [Facts(ReplicaState(state), f"Reason{state}", f"It is {state}.") for state in states]


@pytest.mark.parametrize(
    ("state", "desired", "replicas", "want"),
    [
        ("running", 2, ["ready", "ready"], "ready"),
        ("running", 2, ["ready", "loading"], "progressing"),
        ("running", 2, ["ready", "failed"], "degraded"),
        ("running", 2, ["ready", "unreachable", "loading"], "degraded"),
        ("running", 1, ["degraded"], "degraded"),
        ("running", 2, ["ready", "asleep"], "ready"),
        ("running", 1, ["asleep"], "ready"),
        ("running", 2, ["asleep", "failed"], "degraded"),
        ("running", 1, ["loading"], "starting"),
        ("running", 2, ["loading", "failed"], "starting"),
        ("running", 1, ["failed"], "failed"),
        ("running", 1, ["pending"], "pending"),
        ("running", 1, [], "pending"),
        ("running", 0, [], "idle"),
        ("running", 1, ["ready", "draining"], "ready"),
        ("stopped", 1, ["draining"], "stopping"),
        ("stopped", 1, ["stopped"], "stopped"),
        ("deleting", 1, ["draining"], "deleting"),
    ],
)
def test_word(state, desired, replicas, want):
    made = health(state, desired, 7, facts(*replicas))
    assert made.word == want
    assert want in WORDS
    assert made.sentence
    assert {condition.observed_generation for condition in made.conditions} == {7}


def test_conditions_recover_by_themselves():
    def statuses(*states):
        return {c.type: c.status for c in health("running", 2, 1, facts(*states)).conditions}

    assert statuses("ready", "failed") == {
        "Available": "True", "Progressing": "True", "QuotaOK": "True", "Healthy": "False",
    }  # fmt: skip
    assert statuses("ready", "ready") == {
        "Available": "True", "Progressing": "False", "QuotaOK": "True", "Healthy": "True",
    }  # fmt: skip


def test_a_quota_that_is_too_small_is_a_condition():
    refused = [Facts(ReplicaState.PENDING, "QuotaExceeded", "The quota is 1 GiB.")]
    (found,) = [c for c in health("running", 1, 1, refused).conditions if c.type == "QuotaOK"]
    assert (found.status, found.reason, found.message) == ("False", "QuotaExceeded", "The quota is 1 GiB.")

"""How a deployment is going (pure): conditions, one word and one sentence, derived from its replicas every time."""

import dataclasses
from collections.abc import Sequence
from typing import Final

from kernel.texts import counted
from serving.states import STARTING, DeploymentState, ReplicaState

_R = ReplicaState


@dataclasses.dataclass(frozen=True)
class Condition:
    """A statement that is true, false or unknown, with a PascalCase reason and a sentence."""

    type: str
    status: str
    reason: str
    message: str
    observed_generation: int


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is looked at of one replica."""

    state: ReplicaState
    reason: str
    message: str


@dataclasses.dataclass(frozen=True)
class Health:
    """``word`` is one of :data:`WORDS`."""

    word: str
    sentence: str
    conditions: tuple[Condition, ...]
    ready: int


WORDS: Final = (
    "ready", "degraded", "progressing", "starting", "pending", "failed", "idle", "stopping", "stopped", "deleting",
)  # fmt: skip


_FOR_CALLERS: Final = {
    "starting": "The model is starting; try again in a moment.",
    "pending": "The model waits for a place on a device. Its owner can see why.",
    "failed": "The model is not answering now. Its owner can see why.",
    "idle": "The model is switched off: no replica is wanted.",
    "stopping": "The model is being stopped by its owner.",
    "stopped": "The model was stopped by its owner.",
    "deleting": "The model is being deleted by its owner.",
}


def for_callers(health: Health) -> Health:
    """What those may know who only call the model: whether it answers; no counts, no devices, no engine's words."""
    if health.ready:
        return Health("ready", "The model answers.", (), 1)
    return Health(health.word, _FOR_CALLERS.get(health.word, _FOR_CALLERS["failed"]), (), 0)


def health(state: str, desired: int, generation: int, replicas: Sequence[Facts]) -> Health:
    """Derive everything that is shown about a deployment. Stopped replicas do not matter."""
    live = [replica for replica in replicas if replica.state != _R.STOPPED]
    count = {value: sum(1 for replica in live if replica.state == value) for value in _R}
    ready = count[_R.READY] + count[_R.DEGRADED] + count[_R.ASLEEP]
    word, sentence = _word(state, desired, ready, live, count)
    bad = [replica for replica in live if replica.state in (_R.FAILED, _R.UNREACHABLE, _R.DEGRADED)]
    refused = [replica for replica in live if replica.state == _R.PENDING and replica.reason == "QuotaExceeded"]
    moving = ready < desired or count[_R.DRAINING] > 0 or len(live) - count[_R.DRAINING] > desired
    running = state == DeploymentState.RUNNING

    def condition(kind: str, holds: bool, reason: str, message: str) -> Condition:
        return Condition(kind, "True" if holds else "False", reason, message, generation)

    return Health(
        word,
        sentence,
        (
            condition(
                "Available",
                ready > 0,
                "ReplicasReady" if ready else "NoReplicaReady",
                f"{ready} of {counted(desired, 'replica')} serving.",
            ),
            condition(
                "Progressing",
                moving if running else bool(live),
                word.title() if (moving if running else live) else "Settled",
                sentence,
            ),
            condition(
                "QuotaOK",
                not refused,
                "QuotaExceeded" if refused else "WithinQuota",
                refused[0].message if refused else "The quota suffices.",
            ),
            condition(
                "Healthy",
                not bad,
                bad[0].reason or "ReplicaUnwell" if bad else "AllWell",
                bad[0].message if bad else "No replica reports a problem.",
            ),
        ),
        ready,
    )


def _word(
    state: str, desired: int, ready: int, live: Sequence[Facts], count: dict[ReplicaState, int]
) -> tuple[str, str]:
    if state == DeploymentState.DELETING:
        return "deleting", f"Being deleted; {counted(len(live), 'replica')} still to stop."
    if state == DeploymentState.STOPPED:
        return (
            ("stopping", f"Stopping; {counted(len(live), 'replica')} still to finish.")
            if live
            else ("stopped", "Stopped by a member.")
        )
    if desired == 0:
        return "idle", "No replica is wanted."
    if ready >= desired:
        if count[_R.DEGRADED]:
            return (
                "degraded",
                f"{count[_R.DEGRADED]} of {counted(ready, 'replica')} in trouble: {_first(live, _R.DEGRADED)}",
            )
        if count[_R.ASLEEP]:
            asleep = f"{count[_R.ASLEEP]} of them asleep until the next request"
            return "ready", f"{ready} of {counted(desired, 'replica')} ready, {asleep}."
        return "ready", f"{ready} of {counted(desired, 'replica')} ready."
    if ready:
        if trouble := count[_R.FAILED] + count[_R.UNREACHABLE]:
            said = _first(live, _R.FAILED) or _first(live, _R.UNREACHABLE)
            return "degraded", f"{ready} of {counted(desired, 'replica')} ready, {trouble} in trouble: {said}"
        return "progressing", f"{ready} of {counted(desired, 'replica')} ready; more are on their way."
    starting = [replica for replica in live if replica.state in STARTING]
    if starting:
        furthest = max(starting, key=lambda replica: _ORDER.index(replica.state))
        return "starting", f"No replica is ready yet; the first is {furthest.state.value}."
    if count[_R.FAILED] or count[_R.UNREACHABLE]:
        return "failed", _first(live, _R.FAILED) or _first(live, _R.UNREACHABLE)
    return "pending", _first(live, _R.PENDING) or "Waiting for a place."


_ORDER: Final = (_R.ASSIGNED, _R.FETCHING, _R.LOADING, _R.WARMING)


def _first(live: Sequence[Facts], state: ReplicaState) -> str:
    return next((replica.message or replica.reason for replica in live if replica.state == state), "")

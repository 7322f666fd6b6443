"""The log of a rollout, and its state moves: written in the transaction of what they tell."""

from collections.abc import Mapping
from typing import Any

from kernel import clock, machine
from kernel.actors import Actor, ActorKind
from ledger.record import record_move
from rollouts.models import LogKind, Rollout, RolloutLog
from rollouts.states import ROLLOUT, RolloutState


def note(
    rollout: Rollout, kind: LogKind, sentence: str, *, actor: Actor | None = None, data: Mapping[str, Any] | None = None
) -> None:
    """Add a line. People are named, loops are not."""
    who = actor.label if actor is not None and actor.kind is not ActorKind.SYSTEM else ""
    RolloutLog.objects.create(
        rollout=rollout,
        at=clock.now(),
        step=rollout.step,
        kind=kind,
        sentence=sentence,
        actor=who,
        data=dict(data or {}),
    )


def move(rollout: Rollout, to: RolloutState, *, actor: Actor, reason: str, message: str, **fields: Any) -> None:
    """Move the rollout, audited and logged."""
    moved = machine.move(rollout, ROLLOUT, to, reason=reason, message=message, **fields)
    record_move(moved, actor=actor, tenant_id=rollout.tenant_id, subject_label=rollout.endpoint.name)
    note(rollout, LogKind.STATE, message, actor=actor, data={"from": moved.source, "to": moved.target})

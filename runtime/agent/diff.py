"""Desired against observed: one pure function from views to actions.

Every call looks at everything afresh, so that a lost event costs one round and no more. At most a few actions per
replica come out; the next round sees their effect and goes on.
"""

from collections.abc import Mapping, Sequence

from runtime.agent.errors import Retry
from runtime.agent.views import (
    Action,
    Create,
    Drain,
    Fail,
    Fetch,
    Forget,
    Forgive,
    Kill,
    Launch,
    Move,
    Policy,
    Refuse,
    Renew,
    ReplicaView,
    Settle,
    Terminate,
    Verify,
    Work,
)
from runtime.wire.assignments import Desired, NodeAssignments, ReplicaAssignment
from runtime.wire.reports import Phase

_SERVING = frozenset({Phase.READY, Phase.DEGRADED, Phase.ASLEEP})
_WITHOUT_ENGINE = frozenset({Phase.FETCHING, Phase.FAILED, Phase.STOPPED})


def plan(
    desired: NodeAssignments | None,
    views: Sequence[ReplicaView],
    *,
    highest: Mapping[str, int],
    now: float,
    policy: Policy,
) -> list[Action]:
    """Return what to do now. ``desired`` is ``None`` until this node was ever told anything: then all goes on as it is.

    ``highest`` holds the newest generation ever seen of each replica, forgotten ones included.
    """
    actions: list[Action] = []
    known = {view.id for view in views}
    wanted = None if desired is None else {item.replica_id: item for item in desired.replicas}
    for view in views:
        want = view.assignment if wanted is None else wanted.get(view.id)
        actions += _replica(view, want, now, policy)
    for replica_id, item in (wanted or {}).items():
        if replica_id in known:
            continue
        newest = highest.get(replica_id, 0)
        if item.generation < newest:
            actions.append(Refuse(replica_id=replica_id, generation=item.generation, newest=newest))
        else:
            actions.append(Create(assignment=item, not_before=now + item.backoff_seconds))
    return actions


def backoff(crashes: int, policy: Policy) -> float:
    """Seconds to wait after the ``crashes``-th crash in a row: doubling, bounded."""
    doublings = min(max(crashes - 1, 0), 30)
    return min(policy.backoff_limit, policy.backoff_first * float(2**doublings))


def _replica(view: ReplicaView, want: ReplicaAssignment | None, now: float, policy: Policy) -> list[Action]:
    actions: list[Action] = []
    if want is not None and want.generation < view.generation:
        actions.append(Refuse(replica_id=view.id, generation=want.generation, newest=view.generation))
        want = view.assignment
    if view.process is not None and view.process.exit:
        return [*actions, _settle(view, want, now, policy)]
    if want is not None and _renewable(view, want):
        return [*actions, Renew(assignment=want, not_before=now + want.backoff_seconds)]
    if want is None or want.desired is Desired.STOP:
        return actions + _end(view, want, now, policy)
    if want.desired is Desired.DRAIN:
        return actions + _wind_down(view, want, now, policy, "Draining", "asked to finish and stop")
    if want.generation > view.generation:
        return actions + _wind_down(view, want, now, policy, "Replaced", f"generation {want.generation} takes over")
    return actions + _run(view, now, policy)


def _renewable(view: ReplicaView, want: ReplicaAssignment) -> bool:
    """A newer order can be taken as it is: always when it does not ask for an engine, else once none is left.

    An engine belongs to one generation, so a newer one that is to run replaces it.
    """
    if want.generation == view.generation:
        return want != view.assignment  # the same run, to be ended or drained
    return want.generation > view.generation and (view.process is None or want.desired is not Desired.RUN)


def _settle(view: ReplicaView, want: ReplicaAssignment | None, now: float, policy: Policy) -> Settle:
    process = view.process
    assert process is not None
    asked = process.term_at is not None or view.phase is Phase.DRAINING
    unwanted = want is None or want.desired is not Desired.RUN
    if unwanted or (asked and not process.end_reason):
        return Settle(replica_id=view.id, phase=Phase.STOPPED, reason=view.reason or "Stopped", message=view.message)
    message = process.end_message or f"the engine ended ({process.exit})"
    if not process.end_reason and process.last_line:
        message += f": {process.last_line}"
    return Settle(
        replica_id=view.id,
        phase=Phase.FAILED,
        reason=process.end_reason or "EngineExited",
        message=message,
        crashed=True,
        retry_at=now + backoff(view.crashes + 1, policy),
    )


def _end(view: ReplicaView, want: ReplicaAssignment | None, now: float, policy: Policy) -> list[Action]:
    if view.process is None:
        if view.phase is not Phase.STOPPED:
            return [Move(replica_id=view.id, phase=Phase.STOPPED, reason="Stopped")]
        return [Forget(replica_id=view.id)] if want is None and view.reported else []
    if view.process.term_at is None:
        return [Terminate(replica_id=view.id, phase=Phase.DRAINING, reason="Stopping", message="asked to stop")]
    return _escalate(view, now, policy)


def _escalate(view: ReplicaView, now: float, policy: Policy) -> list[Action]:
    """After SIGTERM: wait, kill, and say so when even that does not help."""
    process = view.process
    if process is None or process.term_at is None:
        return []
    if process.kill_at is None:
        return [Kill(replica_id=view.id)] if now >= process.term_at + policy.term_grace else []
    if now >= process.kill_at + policy.kill_grace and view.reason != "EngineUnkillable":
        message = "the engine does not end even when killed: its device driver may hang; the machine may need a restart"
        return [Move(replica_id=view.id, phase=Phase.DRAINING, reason="EngineUnkillable", message=message)]
    return []


def _wind_down(
    view: ReplicaView, want: ReplicaAssignment | None, now: float, policy: Policy, reason: str, message: str
) -> list[Action]:
    """Finish running requests within the drain time, then end; an engine not yet in service is ended at once."""
    if view.process is None or view.process.term_at is not None:
        return _end(view, want, now, policy)
    if view.phase in _SERVING:
        return [Drain(replica_id=view.id, reason=reason, message=message)]
    if view.phase is not Phase.DRAINING:
        return [Terminate(replica_id=view.id, phase=Phase.DRAINING, reason=reason, message=message)]
    drain_seconds = (want or view.assignment).drain_seconds
    if now >= view.since + drain_seconds + (policy.term_grace if view.follows else 0):
        cut = f"requests were still running after {drain_seconds} s of draining"
        return [Terminate(replica_id=view.id, phase=Phase.DRAINING, reason="DrainTimeout", message=cut)]
    if _idle(view):
        return [Terminate(replica_id=view.id, phase=Phase.DRAINING, reason="Drained", message="nothing was running")]
    return []


def _idle(view: ReplicaView) -> bool:
    """True when the engine has said, after it accepted the drain, that nothing runs or waits. What does at the leader
    of its ranks it does not know: it ends by itself when that has ended."""
    if view.follows:
        return False
    if view.engine is None or view.drain_at is None or view.engine_at <= view.drain_at:
        return False
    stats = view.engine.stats
    return stats.num_requests_running == 0 and stats.num_requests_waiting == 0


def _run(view: ReplicaView, now: float, policy: Policy) -> list[Action]:
    process = view.process
    if process is None:
        return _start(view, now, policy)
    if process.term_at is not None:
        return _escalate(view, now, policy)
    if view.phase is Phase.DRAINING:  # a drain cannot be taken back: let it end, then start anew
        return _wind_down(view, None, now, policy, view.reason, view.message)
    if view.phase in _WITHOUT_ENGINE:  # it was started and that could not be written down: catch up
        phase = Phase.LOADING if view.phase is Phase.FETCHING else Phase.FETCHING
        return [Move(replica_id=view.id, phase=phase)]
    if view.silent_since is not None or view.engine is None:
        return _silent(view, now, policy)
    return _answering(view, now, policy)


def _start(view: ReplicaView, now: float, policy: Policy) -> list[Action]:
    if view.fault is not None:
        soon = view.fault.retry is Retry.SOON and view.phase is Phase.FETCHING
        return [
            Fail(
                replica_id=view.id,
                phase=Phase.FETCHING if soon else Phase.FAILED,
                reason=view.fault.reason,
                message=view.fault.message,
                retry_at=now + backoff(view.faults + 1, policy),
                blocked=view.fault.retry is Retry.NEVER,
            )
        ]
    if view.blocked or now < view.retry_at:
        return []
    if view.phase in {Phase.FAILED, Phase.STOPPED}:
        return [Move(replica_id=view.id, phase=Phase.FETCHING, reason=view.reason, message=view.message)]
    if view.files is Work.NONE:
        return [Fetch(replica_id=view.id)]
    return [Launch(replica_id=view.id)] if view.files is Work.DONE else []


def _restart(view: ReplicaView, reason: str, message: str) -> Terminate:
    """End an engine that is wanted, so that it starts again; it gets no traffic meanwhile."""
    phase = Phase.DEGRADED if view.phase in _SERVING else view.phase
    return Terminate(replica_id=view.id, phase=phase, reason=reason, message=message, fault=True)


def _silent(view: ReplicaView, now: float, policy: Policy) -> list[Action]:
    """The engine runs and does not answer."""
    if view.phase is Phase.LOADING:
        if now < view.since + policy.loading_timeout:
            return []
        message = f"the engine did not finish loading within {policy.loading_timeout:g} s"
        return [_restart(view, "LoadingTimeout", message)]
    quiet = now - (view.since if view.silent_since is None else view.silent_since)
    if quiet >= policy.silent_limit:
        message = f"the engine did not answer for {quiet:.0f} s and is started again"
        return [_restart(view, "EngineSilent", message)]
    if view.phase in _SERVING and quiet >= policy.degraded_after and view.reason != "EngineSilent":
        message = "the engine has stopped answering"
        return [Move(replica_id=view.id, phase=Phase.DEGRADED, reason="EngineSilent", message=message)]
    return []


def _answering(view: ReplicaView, now: float, policy: Policy) -> list[Action]:
    engine = view.engine
    assert engine is not None
    match engine.phase:
        case Phase.FAILED:
            reason, message = engine.reason or "EngineFailed", engine.message or "the engine reports that it failed"
            return [_restart(view, reason, message)]
        case Phase.FETCHING | Phase.LOADING:
            return _loading(view, now, policy)
        case Phase.WARMING:
            if view.phase is Phase.LOADING:
                return [Move(replica_id=view.id, phase=Phase.WARMING, reason=engine.reason, message=engine.message)]
            return []
        case Phase.READY:
            return _proving(view, now, policy)
        case Phase.ASLEEP:
            return _sleeping(view, now, policy)
        case _:
            return _weak(view, now, policy)


def _loading(view: ReplicaView, now: float, policy: Policy) -> list[Action]:
    if view.phase is Phase.LOADING and now >= view.since + policy.loading_timeout:
        message = f"the engine did not finish loading within {policy.loading_timeout:g} s"
        return [_restart(view, "LoadingTimeout", message)]
    return []


def _weak(view: ReplicaView, now: float, policy: Policy) -> list[Action]:
    """The engine answers and says that it is degraded (or leaves by itself)."""
    engine = view.engine
    assert engine is not None
    if view.phase not in _SERVING:
        return _proving(view, now, policy)
    reason, message = engine.reason or "EngineDegraded", engine.message
    if (view.phase, view.reason, view.message) == (Phase.DEGRADED, reason, message):
        return []
    return [Move(replica_id=view.id, phase=Phase.DEGRADED, reason=reason, message=message)]


def _sleeping(view: ReplicaView, now: float, policy: Policy) -> list[Action]:
    """The engine sleeps, which is no fault; one that has not proved itself yet is woken for it."""
    if view.phase not in _SERVING or not view.proved:
        return _proving(view, now, policy)
    return [] if view.phase is Phase.ASLEEP else [Move(replica_id=view.id, phase=Phase.ASLEEP)]


def _proving(view: ReplicaView, now: float, policy: Policy) -> list[Action]:
    """The engine calls itself ready: believe it once it has answered a real inference."""
    if view.phase is Phase.LOADING and view.follows:
        return [Move(replica_id=view.id, phase=Phase.WARMING)]
    if view.phase is Phase.LOADING:
        return [Move(replica_id=view.id, phase=Phase.WARMING, reason="Verifying", message="trying a real inference")]
    if view.proved:
        if view.phase is not Phase.READY:
            return [Move(replica_id=view.id, phase=Phase.READY)]
        if view.crashes and now >= view.since + policy.forgive_after:
            return [Forgive(replica_id=view.id)]
        return []
    if view.verify_failures >= policy.verify_failures:
        message = view.message or "the engine calls itself ready and answers no inference"
        return [_restart(view, "InferenceFailed", message)]
    if view.verify is Work.NONE and now >= view.verify_at:
        return [Verify(replica_id=view.id)]
    return []

"""The decisions of the agent, as tables: what is wanted, what is seen, what follows."""

from dataclasses import replace

import msgspec
import pytest

from runtime.agent import states
from runtime.agent.diff import backoff, plan
from runtime.agent.errors import Fault, Retry
from runtime.agent.views import (
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
    ProcessView,
    Refuse,
    Renew,
    ReplicaView,
    Settle,
    Terminate,
    Verify,
    Work,
)
from runtime.wire.assignments import Desired, EngineConfig, NodeAssignments, ReplicaAssignment, World
from runtime.wire.inference import EngineState
from runtime.wire.reports import EngineStats, Phase

NOW = 1000.0
POLICY = Policy()
RUN = ReplicaAssignment(
    replica_id="r1",
    generation=3,
    desired=Desired.RUN,
    deployment_id="d",
    revision_id="v",
    tenant_id="t",
    served_name="m",
    format="huggingface",
    artifacts=[],
    devices=[],
    config=EngineConfig(),
    token="x",
    drain_seconds=30,
)
ALIVE = ProcessView(generation=3)
DEAD = ProcessView(generation=3, exit="exit code 1", last_line="boom")


def want(**fields):
    return msgspec.structs.replace(RUN, **fields)


def engine(phase, **fields):
    return EngineState(replica_id="r1", generation=3, phase=phase, **fields)


def view(phase=Phase.READY, **fields):
    assignment = fields.pop("assignment", RUN)
    return ReplicaView(assignment=assignment, phase=phase, since=fields.pop("since", NOW - 10), **fields)


def serving(**fields):
    base = {"process": ALIVE, "engine": engine(Phase.READY), "engine_at": NOW, "verify": Work.DONE, "files": Work.DONE}
    return view(**(base | fields))


def decide(seen, *wanted, highest=None, now=NOW):
    desired = NodeAssignments(node_id="n", generation=9, replicas=list(wanted))
    return plan(desired, [] if seen is None else [seen], highest=highest or {}, now=now, policy=POLICY)


def kinds(actions):
    return [type(action) for action in actions]


@pytest.mark.parametrize(
    ("seen", "want_kinds"),
    [
        pytest.param(view(Phase.FETCHING), [Fetch], id="nothing done yet: fetch"),
        pytest.param(view(Phase.FETCHING, files=Work.RUNNING), [], id="fetching: wait"),
        pytest.param(view(Phase.FETCHING, files=Work.DONE), [Launch], id="files here: launch"),
        pytest.param(view(Phase.FETCHING, files=Work.DONE, retry_at=NOW + 1), [], id="told to wait before starting"),
        pytest.param(view(Phase.FAILED, retry_at=NOW + 1), [], id="failed: back-off runs"),
        pytest.param(view(Phase.FAILED, retry_at=NOW), [Move], id="failed: back-off is over"),
        pytest.param(view(Phase.FAILED, retry_at=0, blocked=True), [], id="failed for good"),
        pytest.param(view(Phase.STOPPED), [Move], id="stopped and wanted: start anew"),
        pytest.param(view(Phase.LOADING, process=ALIVE), [], id="loading, not listening"),
        pytest.param(view(Phase.LOADING, process=ALIVE, since=NOW - 1800), [Terminate], id="loading for too long"),
        pytest.param(serving(phase=Phase.LOADING, engine=engine(Phase.LOADING)), [], id="loading, answering"),
        pytest.param(
            serving(phase=Phase.LOADING, engine=engine(Phase.LOADING), since=NOW - 1800),
            [Terminate],
            id="loading for too long, answering",
        ),
        pytest.param(serving(phase=Phase.LOADING, engine=engine(Phase.WARMING)), [Move], id="engine warms up"),
        pytest.param(serving(phase=Phase.LOADING, verify=Work.NONE), [Move], id="engine ready: prove it"),
        pytest.param(serving(phase=Phase.WARMING, verify=Work.NONE), [Verify], id="trial inference"),
        pytest.param(serving(phase=Phase.WARMING, verify=Work.RUNNING), [], id="trial inference runs"),
        pytest.param(serving(phase=Phase.WARMING, verify=Work.NONE, verify_at=NOW + 1), [], id="pause between trials"),
        pytest.param(
            serving(phase=Phase.WARMING, verify=Work.NONE, verify_failures=5), [Terminate], id="trials failed"
        ),
        pytest.param(serving(phase=Phase.WARMING), [Move], id="trial passed: ready"),
        pytest.param(serving(), [], id="ready: nothing to do"),
        pytest.param(serving(crashes=2, since=NOW - 299), [], id="ready, crashes still count"),
        pytest.param(serving(crashes=2, since=NOW - 300), [Forgive], id="ready for long: crashes forgiven"),
        pytest.param(serving(silent_since=NOW - 2), [], id="silent for a moment"),
        pytest.param(serving(silent_since=NOW - 3), [Move], id="silent: degraded"),
        pytest.param(
            serving(phase=Phase.DEGRADED, reason="EngineSilent", silent_since=NOW - 30), [], id="silent, said already"
        ),
        pytest.param(serving(phase=Phase.DEGRADED, silent_since=NOW - 60), [Terminate], id="silent for too long"),
        pytest.param(serving(engine=engine(Phase.DEGRADED, reason="Pool")), [Move], id="engine degraded"),
        pytest.param(
            serving(phase=Phase.DEGRADED, reason="Pool", engine=engine(Phase.DEGRADED, reason="Pool")),
            [],
            id="engine degraded, said already",
        ),
        pytest.param(serving(phase=Phase.DEGRADED), [Move], id="engine recovered"),
        pytest.param(serving(engine=engine(Phase.ASLEEP)), [Move], id="engine asleep"),
        pytest.param(serving(phase=Phase.ASLEEP, engine=engine(Phase.ASLEEP)), [], id="engine asleep, said already"),
        pytest.param(serving(phase=Phase.ASLEEP), [Move], id="engine woke"),
        pytest.param(
            serving(phase=Phase.DEGRADED, verify=Work.NONE, engine=engine(Phase.ASLEEP)),
            [Verify],
            id="asleep, unproved",
        ),
        pytest.param(serving(phase=Phase.DEGRADED, verify=Work.NONE), [Verify], id="recovered from silence: prove it"),
        pytest.param(serving(engine=engine(Phase.FAILED, reason="OutOfMemory")), [Terminate], id="engine failed"),
        pytest.param(view(Phase.LOADING, process=DEAD), [Settle], id="died while loading"),
        pytest.param(serving(process=DEAD), [Settle], id="died while ready"),
        pytest.param(serving(process=replace(ALIVE, term_at=NOW - 9)), [], id="asked to end: wait"),
        pytest.param(serving(process=replace(ALIVE, term_at=NOW - 10)), [Kill], id="asked to end: kill"),
        pytest.param(serving(process=replace(ALIVE, term_at=0, kill_at=NOW - 9)), [], id="killed: wait"),
        pytest.param(serving(process=replace(ALIVE, term_at=0, kill_at=NOW - 10)), [Move], id="cannot be killed"),
    ],
)
def test_a_replica_that_should_run(seen, want_kinds):
    assert kinds(decide(seen, RUN)) == want_kinds


@pytest.mark.parametrize(
    ("seen", "desired", "want_kinds"),
    [
        pytest.param(serving(), Desired.STOP, [Terminate], id="stop: end now"),
        pytest.param(view(Phase.FETCHING, files=Work.RUNNING), Desired.STOP, [Move], id="stop while fetching"),
        pytest.param(view(Phase.FAILED), Desired.STOP, [Move], id="stop what failed"),
        pytest.param(view(Phase.STOPPED, reported=True), Desired.STOP, [], id="stopped and still assigned: keep"),
        pytest.param(serving(), Desired.DRAIN, [Drain], id="drain what serves"),
        pytest.param(view(Phase.LOADING, process=ALIVE), Desired.DRAIN, [Terminate], id="drain what loads: end"),
        pytest.param(view(Phase.FAILED), Desired.DRAIN, [Move], id="drain what failed"),
        pytest.param(serving(phase=Phase.DRAINING), Desired.DRAIN, [], id="drain accepted, no newer state yet"),
        pytest.param(serving(phase=Phase.DRAINING, drain_at=NOW - 1), Desired.DRAIN, [Terminate], id="drained"),
        pytest.param(
            serving(
                phase=Phase.DRAINING,
                drain_at=NOW - 1,
                engine=engine(Phase.DRAINING, stats=EngineStats(num_requests_waiting=1)),
            ),
            Desired.DRAIN,
            [],
            id="still busy",
        ),
        pytest.param(
            serving(
                phase=Phase.DRAINING,
                drain_at=NOW - 1,
                since=NOW - 30,
                engine=engine(Phase.DRAINING, stats=EngineStats(num_requests_running=1)),
            ),
            Desired.DRAIN,
            [Terminate],
            id="busy for too long",
        ),
        pytest.param(serving(process=DEAD, phase=Phase.DRAINING), Desired.DRAIN, [Settle], id="left by itself"),
        pytest.param(serving(phase=Phase.DRAINING, drain_at=NOW - 1), Desired.RUN, [Terminate], id="no way back"),
    ],
)
def test_a_replica_that_should_end(seen, desired, want_kinds):
    wanted = want(desired=desired)
    assert kinds(decide(replace(seen, assignment=wanted), wanted)) == want_kinds


@pytest.mark.parametrize(
    ("seen", "want_kinds"),
    [
        pytest.param(serving(), [Terminate], id="running: end"),
        pytest.param(view(Phase.STOPPED), [], id="stopped, not reported yet: keep"),
        pytest.param(view(Phase.STOPPED, reported=True), [Forget], id="stopped and known to be"),
        pytest.param(view(Phase.FETCHING), [Move], id="not started: stop"),
    ],
)
def test_a_replica_that_is_no_longer_assigned(seen, want_kinds):
    assert kinds(decide(seen)) == want_kinds


def test_how_an_end_is_read():
    [crash] = decide(serving(process=DEAD, crashes=1), RUN)
    assert crash == Settle(
        replica_id="r1",
        phase=Phase.FAILED,
        reason="EngineExited",
        message="the engine ended (exit code 1): boom",
        crashed=True,
        retry_at=NOW + 2,
    )
    [asked] = decide(serving(process=replace(DEAD, term_at=NOW), reason="Drained"), want(desired=Desired.STOP))
    assert (asked.phase, asked.reason, asked.crashed) == (Phase.STOPPED, "Drained", False)
    ended = replace(DEAD, term_at=NOW, end_reason="LoadingTimeout", end_message="too long")
    [fault] = decide(serving(process=ended), RUN)
    assert (fault.phase, fault.reason, fault.message, fault.crashed) == (
        Phase.FAILED,
        "LoadingTimeout",
        "too long",
        True,
    )


def test_generations():
    assert kinds(decide(serving(), want(generation=2))) == [Refuse]
    assert kinds(decide(serving(), want(generation=2, desired=Desired.STOP))) == [Refuse]
    assert kinds(decide(serving(), want(generation=4))) == [Drain]
    assert kinds(decide(serving(), want(generation=4, desired=Desired.STOP))) == [Renew]
    assert kinds(decide(view(Phase.FAILED, blocked=True), want(generation=4))) == [Renew]
    assert kinds(decide(None, RUN, highest={"r1": 4})) == [Refuse]
    [created] = decide(None, want(backoff_seconds=7.0), highest={"r1": 3})
    assert created == Create(assignment=want(backoff_seconds=7.0), not_before=NOW + 7)


def test_without_any_assignments_everything_goes_on():
    def blind(seen):
        return plan(None, [seen], highest={}, now=NOW, policy=POLICY)

    assert blind(serving()) == []
    assert kinds(blind(serving(process=DEAD))) == [Settle]
    assert kinds(blind(view(Phase.FAILED))) == [Move]


@pytest.mark.parametrize(
    ("retry", "want_phase", "want_blocked"),
    [(Retry.SOON, Phase.FETCHING, False), (Retry.LATER, Phase.FAILED, False), (Retry.NEVER, Phase.FAILED, True)],
)
def test_faults_before_the_engine_starts(retry, want_phase, want_blocked):
    seen = view(Phase.FETCHING, fault=Fault("DiskFull", "no room", retry), faults=2)
    assert decide(seen, RUN) == [
        Fail(
            replica_id="r1",
            phase=want_phase,
            reason="DiskFull",
            message="no room",
            retry_at=NOW + 4,
            blocked=want_blocked,
        )
    ]


def test_back_off_doubles_up_to_its_bound():
    assert [backoff(count, POLICY) for count in (0, 1, 2, 3, 6, 7, 1000)] == [1, 1, 2, 4, 32, 60, 60]


def test_an_engine_that_is_to_restart_gets_no_traffic_meanwhile():
    [action] = decide(serving(engine=engine(Phase.FAILED, reason="OutOfMemory", message="no bytes")), RUN)
    assert action == Terminate(
        replica_id="r1", phase=Phase.DEGRADED, reason="OutOfMemory", message="no bytes", fault=True
    )


def test_phases_move_along_the_table_only():
    states.check(Phase.READY, Phase.READY)
    states.check(Phase.FAILED, Phase.FETCHING)
    with pytest.raises(states.IllegalMove):
        states.check(Phase.FAILED, Phase.READY)
    with pytest.raises(states.IllegalMove):
        states.check(Phase.LOADING, Phase.READY)


def test_every_move_that_is_ever_planned_is_in_the_table():
    """Walk every combination of what can be seen and check the moves that come out."""
    processes = [None, ALIVE, DEAD, replace(ALIVE, term_at=NOW - 99), replace(ALIVE, term_at=0, kill_at=NOW - 99)]
    engines = [None, *(engine(phase) for phase in Phase)]
    wants = [None, *(want(generation=g, desired=d) for g in (2, 3, 4) for d in Desired)]
    for phase in Phase:
        for process in processes:
            for state in engines:
                for silent in (None, NOW - 2, NOW - 99):
                    for verify in Work:
                        seen = view(phase, process=process, engine=state, silent_since=silent, verify=verify)
                        for wanted in wants:
                            for action in decide(seen, *([] if wanted is None else [wanted])):
                                if isinstance(action, Move | Settle | Terminate | Fail):
                                    states.check(phase, action.phase)
                                if isinstance(action, Drain):
                                    states.check(phase, Phase.DRAINING)
                                if isinstance(action, Launch):
                                    states.check(phase, Phase.LOADING)
                                assert not (isinstance(action, Launch) and process is not None)


FOLLOW = want(world=World(size=2, ranks=[1], leader="10.0.0.1:29500", pipeline=2))


def following(phase, engine_phase=Phase.READY, **fields):
    return serving(phase=phase, engine=engine(engine_phase), assignment=FOLLOW, verify=Work.NONE, **fields)


def test_ranks_that_follow_are_believed_since_their_leader_proves_them():
    (move,) = decide(following(Phase.LOADING), FOLLOW)
    assert (move.phase, move.reason) == (Phase.WARMING, "")
    (move,) = decide(following(Phase.WARMING), FOLLOW)
    assert move.phase is Phase.READY
    assert decide(following(Phase.READY), FOLLOW) == []
    (move,) = decide(following(Phase.READY, Phase.ASLEEP), FOLLOW)
    assert move.phase is Phase.ASLEEP
    leads = msgspec.structs.replace(FOLLOW, world=msgspec.structs.replace(FOLLOW.world, ranks=[0]))
    (verify,) = decide(replace(following(Phase.WARMING), assignment=leads), leads)
    assert isinstance(verify, Verify)


def test_ranks_that_follow_drain_until_their_leader_has_ended():
    drained = msgspec.structs.replace(FOLLOW, desired=Desired.DRAIN)
    draining = replace(following(Phase.DRAINING), assignment=drained, drain_at=NOW - 5)
    assert decide(draining, drained) == []  # nothing runs here, and perhaps at the leader
    beyond = NOW - RUN.drain_seconds - 1
    assert decide(replace(draining, since=beyond), drained) == []  # as long as the leader may, and its end
    (end,) = decide(replace(draining, since=beyond - POLICY.term_grace), drained)
    assert (type(end), end.reason) == (Terminate, "DrainTimeout")
    ended = replace(draining, process=ProcessView(generation=3, exit="exit code 0"))
    (settled,) = decide(ended, drained)
    assert (settled.phase, settled.crashed) == (Phase.STOPPED, False)

"""What to do about a deployment now (pure): wanted against existing, looked at afresh every time.

Rules, in the order in which they matter:

- A replica on a node that was removed is lost for good; one on a lost node is unreachable and keeps its partition.
- A failed replica is left to its agent, which tries again by itself, for :data:`PATIENCE`; then the node must give it
  up, and after a back-off it is pending again on a new generation, free to go elsewhere.
- Replicas on draining nodes, those on sick devices, those whose place is wanted for others and unreachable ones do not
  count towards the wanted number, so successors are made for them. What leaves is drained only as its successors get
  ready, unless a gap was accepted, its device is dead, or it has waited for :data:`MOVE_PATIENCE`.
- Of an unreachable replica over several nodes the ranks on those that answer end once its successors serve, or its
  place is wanted: until then its lost node may come back, and all of it serves again.
- Too many: drain those that are not ready first, then the newest.
"""

import dataclasses
import datetime
import enum
import uuid
from collections.abc import Sequence
from typing import Final

from fleet.states import NodeState
from serving.states import RUNNING_ON_NODE, SERVING, ReplicaState

PATIENCE: Final = datetime.timedelta(seconds=15)
#: So long a replica whose place is wanted may wait for its successor to serve; then it goes all the same.
MOVE_PATIENCE: Final = datetime.timedelta(minutes=5)
KEEP_STOPPED: Final = datetime.timedelta(hours=1)
KEEP_STOPPED_AT_MOST: Final = 10
BACKOFF_LIMIT_SECONDS: Final = 300
#: Reason of a replica that leaves, or left, a device that went bad.
DEVICE_FAULT: Final = "DeviceFault"
#: Reason of a replica with a lost node.
NODE_LOST: Final = "NodeLost"
#: Reason of a replica that ended with its node.
NODE_REMOVED: Final = "NodeRemoved"
_REMOVED_TEXT: Final = "Its node was removed from the fleet."
STRANDED_TEXT: Final = "One of its nodes is silent; what others run of it ends, and a successor takes its place."


class Do(enum.StrEnum):
    """What is done to one replica."""

    DRAIN = "drain"  # finish what runs, then stop; a replica without a node stops at once
    LOSE = "lose"  # its node was removed: it is gone, and starts again elsewhere
    ABANDON = "abandon"  # its node was removed while it was on its way out: it is gone
    UNREACH = "unreach"  # its node is lost
    RECALL = "recall"  # failed and not recovering: its node is to give it up
    RETRY = "retry"  # failed, given up, and waited long enough: pending on a new generation
    FORGET = "forget"  # stopped long ago: delete the row


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplicaView:
    """A replica as the plan sees it. ``node_state`` is "" for one without a node.

    ``sick`` says in one sentence for its owner why it must leave its device, "" when it need not; on a ``dead`` device
    it serves nobody. Since ``moving_since`` its place is wanted for another; ``moving`` is the reason and the sentence.
    ``partly``: one of its nodes is lost, and another is not. ``ended``: it has ended with a node that was removed.
    """

    id: uuid.UUID
    state: ReplicaState
    since: datetime.datetime
    node_state: str = ""
    node_accepts_gap: bool = False
    retry_at: datetime.datetime | None = None
    recalled: bool = False
    sick: str = ""
    dead: bool = False
    partly: bool = False
    ended: bool = False
    moving_since: datetime.datetime | None = None
    moving: tuple[str, str] = ("", "")


@dataclasses.dataclass(frozen=True)
class Step:
    """One thing to do, with the words that go on the row."""

    replica_id: uuid.UUID
    do: Do
    reason: str = ""
    message: str = ""


@dataclasses.dataclass(frozen=True)
class Plan:
    """``create`` replicas are to be made; ``finished`` when nothing of a deployment that should be gone is left."""

    steps: tuple[Step, ...]
    create: int
    finished: bool


def backoff(failures: int) -> datetime.timedelta:
    """How long a replica waits before it is placed again after its ``failures``-th failure: 2, 4, 8 … 300 seconds."""
    return datetime.timedelta(seconds=min(2 ** min(max(failures, 1), 30), BACKOFF_LIMIT_SECONDS))


def plan(replicas: Sequence[ReplicaView], *, target: int, deleting: bool, now: datetime.datetime) -> Plan:
    """Return what to do so that ``target`` replicas serve."""
    steps = [step for replica in replicas for step in _by_itself(replica, now)]
    steps += _forget_surplus(replicas)
    live = [replica for replica in replicas if replica.state not in (ReplicaState.STOPPED, ReplicaState.DRAINING)]
    leaving = [replica for replica in live if not _unreachable(replica) and _leaving(replica)]
    staying = [replica for replica in live if not _unreachable(replica) and not _leaving(replica)]
    if target == 0:
        reason = ("Deleted", "The deployment is being deleted.") if deleting else ("NotWanted", "No replica is wanted.")
        steps += [Step(replica.id, Do.DRAIN, *reason) for replica in live]
        return Plan(_once(steps), 0, finished=deleting and all(r.state == ReplicaState.STOPPED for r in replicas))
    surplus = len(staying) - target
    too_many = _first_to_go(staying)[: max(surplus, 0)]
    steps += [_surplus(replica) for replica in too_many]
    steps += _leave(leaving, staying, target, now)
    steps += _stranded([replica for replica in live if _unreachable(replica) and replica.partly], staying, target)
    return Plan(_once(steps), create=max(-surplus, 0), finished=False)


def _by_itself(replica: ReplicaView, now: datetime.datetime) -> list[Step]:
    """What happens to a replica whatever is wanted."""
    if replica.state == ReplicaState.STOPPED:
        return [Step(replica.id, Do.FORGET)] if now - replica.since >= KEEP_STOPPED else []
    if replica.node_state == NodeState.REMOVED:
        return [evicted(replica)]
    if (
        replica.node_state == NodeState.LOST
        and replica.state in RUNNING_ON_NODE
        and replica.state != ReplicaState.UNREACHABLE
    ):
        said = "Its node is silent. It gets no traffic; what it holds stays taken until the node reports or is removed."
        return [Step(replica.id, Do.UNREACH, NODE_LOST, said)]
    if replica.state != ReplicaState.FAILED:
        return []
    if not replica.node_state:
        ready = replica.retry_at is None or replica.retry_at <= now
        return [Step(replica.id, Do.RETRY, "Retrying", "Trying again after a failure.")] if ready else []
    if not replica.recalled and now - replica.since >= PATIENCE:
        return [Step(replica.id, Do.RECALL)]
    return []


def evicted(replica: ReplicaView) -> Step:
    """What happens to a replica whose node is removed (pure)."""
    do = Do.ABANDON if replica.state == ReplicaState.DRAINING else Do.LOSE
    return Step(replica.id, do, NODE_REMOVED, _REMOVED_TEXT)


def _surplus(replica: ReplicaView) -> Step:
    """Why one of too many ends; nobody need have scaled down: its node may be back, or gone for good."""
    if replica.ended:
        return Step(replica.id, Do.DRAIN, NODE_REMOVED, _REMOVED_TEXT)
    return Step(replica.id, Do.DRAIN, "Surplus", "More replicas run than are wanted; this one ends.")


def _forget_surplus(replicas: Sequence[ReplicaView]) -> list[Step]:
    """Stopped rows are kept for people to read, but not many of them."""
    stopped = sorted((r.since, r.id) for r in replicas if r.state == ReplicaState.STOPPED)
    return [Step(key, Do.FORGET) for _since, key in stopped[: max(len(stopped) - KEEP_STOPPED_AT_MOST, 0)]]


def _unreachable(replica: ReplicaView) -> bool:
    return replica.state == ReplicaState.UNREACHABLE or (
        replica.node_state == NodeState.LOST and replica.state in RUNNING_ON_NODE
    )


def _leaving(replica: ReplicaView) -> bool:
    drained = replica.node_state in (NodeState.DRAINING, NodeState.DRAINED)
    return (drained or bool(replica.sick) or replica.moving_since is not None) and replica.state in RUNNING_ON_NODE


def _has_node(replica: ReplicaView) -> bool:
    return replica.node_state not in ("", NodeState.REMOVED)


def _serves(replica: ReplicaView) -> bool:
    return replica.state in SERVING and _has_node(replica) and not replica.dead


def _leave(
    leaving: Sequence[ReplicaView], staying: Sequence[ReplicaView], target: int, now: datetime.datetime
) -> list[Step]:
    """Drain what must leave its node or device, as far as ready successors (or an accepted gap) allow."""
    serving = [replica for replica in leaving if _serves(replica)]
    must_stay = max(target - sum(1 for replica in staying if _serves(replica)), 0)
    impatient = {replica.id for replica in leaving if replica.node_accepts_gap or _overdue(replica, now)}
    going = [replica for replica in leaving if not _serves(replica) or replica.id in impatient]
    patient = [replica for replica in _first_to_go(serving) if replica.id not in impatient]
    going += patient[: max(len(patient) - must_stay, 0)]
    return [_goodbye(replica) for replica in going]


def _stranded(unreachable: Sequence[ReplicaView], staying: Sequence[ReplicaView], target: int) -> list[Step]:
    """End what nodes that answer still run of replicas with a lost one: it serves nobody, and holds their devices."""
    replaced = sum(1 for replica in staying if _serves(replica)) >= target
    steps = []
    for replica in unreachable:
        if replica.moving_since is not None:
            steps.append(Step(replica.id, Do.DRAIN, *replica.moving))
        elif replaced or replica.node_accepts_gap:
            steps.append(Step(replica.id, Do.DRAIN, NODE_LOST, STRANDED_TEXT))
    return steps


def _overdue(replica: ReplicaView, now: datetime.datetime) -> bool:
    return replica.moving_since is not None and now - replica.moving_since >= MOVE_PATIENCE


def _goodbye(replica: ReplicaView) -> Step:
    if replica.sick:
        return Step(replica.id, Do.DRAIN, DEVICE_FAULT, replica.sick)
    if replica.moving_since is not None and replica.node_state not in (NodeState.DRAINING, NodeState.DRAINED):
        return Step(replica.id, Do.DRAIN, *replica.moving)
    return Step(replica.id, Do.DRAIN, "NodeDraining", "Its node is being drained.")


def _first_to_go(replicas: Sequence[ReplicaView]) -> list[ReplicaView]:
    """Not ready before ready, newest before oldest (ids sort by creation)."""
    newest = sorted(replicas, key=lambda replica: replica.id, reverse=True)
    return sorted(newest, key=lambda replica: _RANK.get(replica.state, 1) if _has_node(replica) else 0)


_RANK: Final = {
    ReplicaState.FAILED: 0,
    ReplicaState.PENDING: 0,
    ReplicaState.DEGRADED: 2,
    ReplicaState.ASLEEP: 2,
    ReplicaState.READY: 3,
}


def _once(steps: Sequence[Step]) -> tuple[Step, ...]:
    """At most one step per replica: leaving outranks everything that would keep it."""
    chosen: dict[uuid.UUID, Step] = {}
    for step in steps:
        held = chosen.get(step.replica_id)
        if held is None or (step.do is Do.DRAIN and held.do not in (Do.LOSE, Do.ABANDON)):
            chosen[step.replica_id] = step
    return tuple(sorted(chosen.values(), key=lambda step: step.replica_id))  # rows are locked in one order everywhere

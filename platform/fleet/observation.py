"""A node's report, applied: lease, state, host facts, devices. Called by dispatch inside its transaction.

Reports are many, so little is written: the lease each time, everything else when it changed in a way that somebody
reads, and the drifting numbers (memory used, temperature) every :data:`fleet.heartbeats.DETAILS_EVERY`, less often the
more nodes there are. A report that says what the last one said, of a node with which all is well, goes to
:mod:`fleet.heartbeats` instead; now and then it is looked at whole here, so that nothing that was missed stays missed.
"""

import dataclasses
import datetime
import uuid
from typing import Any

from fleet import cutting, health, pacing
from fleet.changes import CAPACITY_CHANGED, Changes
from fleet.devices import Synced, sync_devices
from fleet.errors import MachineRemoved
from fleet.facts import HostFacts, NodeFacts
from fleet.heartbeats import details_every
from fleet.joining import actor_of_node
from fleet.models import HealthEvent, Node, Partition
from fleet.states import NODE, DeviceState, NodeState
from kernel import clock, machine
from kernel.actors import Actor
from ledger.record import record_move

MAX_STORED = 5000


@dataclasses.dataclass(frozen=True)
class Observed:
    """``fresh`` is false for a report that was overtaken by a newer one: nothing of it may be used."""

    node: Node
    fresh: bool
    came_back: bool


def observe(node_id: uuid.UUID, facts: NodeFacts, changes: Changes, *, digest: str = "") -> Observed:
    """Apply ``facts`` to the node's rows; locks the node until the caller's transaction ends. The caller announces.

    ``digest`` is the report's (see :class:`fleet.heartbeats.Beat`); "" when it is not known.

    Raises:
        MachineRemoved: the node was removed while its report was on its way.
    """
    node = Node.objects.select_for_update(no_key=True).get(id=node_id)
    if node.state == NodeState.REMOVED:
        raise MachineRemoved("This node was removed; join again with a new token.")
    if facts.agent_id == node.agent_id and facts.sequence <= node.sequence:
        return Observed(node, fresh=False, came_back=False)
    actor = actor_of_node(node)
    now, pace = clock.now(), pacing.current()
    due = node.details_at is None or now - node.details_at >= details_every(pace)
    came_back = _wake(node, actor)
    rebooted = node.last_seen_at if node.boot_id and facts.boot_id[:80] != node.boot_id else None
    values = _identity(node, facts, now)
    if "rank_address" in values:
        _tell_peers(node, changes)
    values |= _changed(node, _steady(facts.host))
    if due:
        values |= {**_drifting(facts.host), "details_at": now}
    stored = sorted(facts.stored_sha256)[:MAX_STORED]
    if stored != node.stored_sha256:
        values["stored_sha256"] = stored
    values |= {
        "sequence": facts.sequence,
        "last_seen_at": now,
        "lease_expires_at": now + pace.lease,
        "looked_at": now,
    }
    for name, value in values.items():
        setattr(node, name, value)
    synced = sync_devices(node, facts.devices, actor=actor, drifting=due)
    cutting.hear(synced.rows, facts.layouts, changes)
    health.hear(node, synced.rows, facts.health, rebooted=rebooted, actor=actor, changes=changes)
    values["settled"] = digest if _is_well(facts, synced) else ""
    Node.objects.filter(id=node.id).update(**values)
    if synced.grown or came_back:
        changes.wake(CAPACITY_CHANGED)
        changes.platform("nodes")
    if came_back:
        changes.routes()
    return Observed(node, fresh=True, came_back=came_back)


def _tell_peers(node: Node, changes: Changes) -> None:
    """Where ranks of this node are met stands in what it and the nodes of the other ranks are told."""
    mine = Partition.objects.filter(device__node=node).values("replica_id")
    for node_id in set(Partition.objects.filter(replica_id__in=mine).values_list("device__node_id", flat=True)):
        changes.node(node_id)


def _is_well(facts: NodeFacts, synced: Synced) -> bool:
    """Whether the same report again could change nothing: every device is known here, there, and healthy."""
    return len(synced.rows) == len(facts.devices) and all(
        row.present and row.state == DeviceState.HEALTHY for row in synced.rows.values()
    )


def _wake(node: Node, actor: Actor) -> bool:
    """A node that reports is not lost (any more), nor joining."""
    if node.state == NodeState.JOINING:
        move = machine.move(node, NODE, NodeState.READY, reason="FirstReport", message="The node reports for work.")
    elif node.state == NodeState.LOST:
        back = NodeState(node.returns_to) if node.returns_to else NodeState.READY
        move = machine.move(node, NODE, back, reason="Reported", message="The node reports again.", returns_to="")
    else:
        return False
    record_move(move, actor=actor, tenant_id=None, subject_label=node.name)
    return True


def _identity(node: Node, facts: NodeFacts, now: datetime.datetime) -> dict[str, Any]:
    changes = _changed(
        node,
        {
            "agent_version": facts.agent_version[:40],
            "boot_id": facts.boot_id[:80],
            "agent_id": facts.agent_id[:80],
            "data_address": facts.data_address[:255],
            "rank_address": facts.rank_address[:64],
            "applied_generation": facts.applied_generation,
        },
    )
    for name, code, message in (
        ("boot_id", "MachineRestarted", "The machine was started again."),
        ("agent_id", "AgentRestarted", "The agent was started again."),
    ):
        if name in changes and getattr(node, name) and not _said_lately(node, code, now):
            HealthEvent.objects.create(at=now, node=node, code=code, message=message)
    return changes


def _said_lately(node: Node, code: str, now: datetime.datetime) -> bool:
    """Two agents with one credential take turns: that is worth one event a minute, not one a second."""
    return HealthEvent.objects.filter(node=node, code=code, at__gt=now - datetime.timedelta(minutes=1)).exists()


def _steady(host: HostFacts) -> dict[str, Any]:
    return {
        "hostname": host.hostname[:255],
        "os": host.os[:120],
        "cpus": host.cpus,
        "memory_bytes": host.memory_bytes,
        "walls": [dict(wall) for wall in host.walls],
        "facts": dict(host.more),
    }


def _drifting(host: HostFacts) -> dict[str, Any]:
    return {
        "memory_available_bytes": host.memory_available_bytes,
        "disk_free_bytes": host.disk_free_bytes,
        "cpu_used": host.cpu_used,
    }


def _changed(row: Any, values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if getattr(row, name) != value}

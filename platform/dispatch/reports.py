"""A node's report, applied: the node and its devices by fleet, its replicas by serving, in one transaction."""

from typing import Final

from django.db import transaction

from dispatch import translate
from fleet import health, heartbeats, pacing
from fleet.changes import Changes
from fleet.joining import actor_of_node
from fleet.models import Node
from fleet.observation import Observed, observe
from kernel.conflicts import retry_on_conflict
from ledger import generations
from runtime.wire.reports import NodeReport, ReportReply
from serving.observing import observe_replicas

#: The agent's word for an engine that survives being killed.
UNKILLABLE: Final = "EngineUnkillable"


@retry_on_conflict
def apply_report(node: Node, report: NodeReport, *, address: str = "") -> ReportReply:
    """Apply ``report`` unless a newer one was applied before; return what the agent should know.

    One without replicas is looked at whole: if it were a mere heartbeat, :mod:`dispatch.heartbeats` had taken it.
    """
    changes, asked = Changes(), pacing.current()
    with transaction.atomic():
        new = translate.beat(report)
        known = node.credential_digest or ""
        if report.replicas and known in heartbeats.note({known: new}, asked):
            observed = Observed(node, fresh=True, came_back=False)
        else:
            observed = observe(node.id, translate.node_facts(report), changes, digest=new.digest)
        if observed.fresh:
            actor, seen = actor_of_node(observed.node, address), translate.observations(report)
            if stuck := [each.replica_id for each in seen if each.reason == UNKILLABLE]:
                health.note_stuck(observed.node, stuck, actor=actor, changes=changes)
            observe_replicas(
                observed.node,
                seen,
                applied_generation=report.applied_generation,
                actor=actor,
                changes=changes,
            )
            changes.announce()
    return ReportReply(
        generation=generations.current(generations.of_node(node.id)),
        interval_seconds=asked.interval_seconds,
        lease_seconds=asked.lease_seconds,
    )

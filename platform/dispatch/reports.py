"""A node's report, applied: the node and its devices by fleet, its replicas by serving, in one transaction."""

from django.db import transaction

from dispatch import translate
from fleet import pacing
from fleet.changes import Changes
from fleet.joining import actor_of_node
from fleet.models import Node
from fleet.observation import observe
from kernel.conflicts import retry_on_conflict
from ledger import generations
from runtime.wire.reports import NodeReport, ReportReply
from serving.observing import observe_replicas


@retry_on_conflict
def apply_report(node: Node, report: NodeReport, *, address: str = "") -> ReportReply:
    """Apply ``report`` unless a newer one was applied before; return what the agent should know."""
    changes, asked = Changes(), pacing.current()
    with transaction.atomic():
        observed = observe(node.id, translate.node_facts(report), changes)
        if observed.fresh:
            observe_replicas(
                observed.node,
                translate.observations(report),
                applied_generation=report.applied_generation,
                actor=actor_of_node(observed.node, address),
                changes=changes,
            )
            changes.announce()
    return ReportReply(
        generation=generations.current(generations.of_node(node.id)),
        interval_seconds=asked.interval_seconds,
        lease_seconds=asked.lease_seconds,
    )

"""A gateway's report, applied: what it says of itself by fleet, and what it newly avoids into the audit log."""

import uuid
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from django.db import transaction

from fleet.gateways import MAX_FACTS, observe_gateway
from fleet.models import Gateway
from kernel import actors, scope
from ledger import hints
from ledger.record import record
from runtime.wire.routes import GatewayReport
from serving.models import Replica

ACTOR: Final = actors.system("dispatch")

Ejected = Mapping[tuple[str, int], Mapping[str, Any]]


def apply_report(gateway: Gateway, report: GatewayReport) -> None:
    """Write the heartbeat; a replica that the gateway began or ceased to avoid becomes an event of that replica.

    ``gateway`` is as it was read for this report: what stands in it is what the last report said.
    """
    before = _by_replica(gateway.ejected)
    after = _by_replica([msgspec.structs.asdict(one) for one in report.ejected[:MAX_FACTS]])
    with transaction.atomic():
        observe_gateway(
            gateway,
            version=report.version,
            url=report.url,
            applied_generation=report.applied_generation,
            table_age_seconds=report.table_age_seconds,
            in_flight=report.in_flight,
            journal_pending=report.journal_pending,
            limits_shared=report.limits_shared,
            ejected=list(after.values()),
            adaptive=[msgspec.structs.asdict(one) for one in report.adaptive],
        )
        if before.keys() != after.keys():
            _note(gateway, before, after)


def _by_replica(facts: list[Any]) -> dict[tuple[str, int], Mapping[str, Any]]:
    return {(fact["replica_id"], fact["generation"]): fact for fact in facts}


def _note(gateway: Gateway, before: Ejected, after: Ejected) -> None:
    changed = before.keys() ^ after.keys()
    ids = {key for replica_id, _generation in changed if (key := _uuid(replica_id)) is not None}
    with scope.all_tenants():
        rows = {row.id: row for row in Replica.objects.filter(id__in=ids).only("id", "tenant_id", "generation")}
    for replica_id, generation in sorted(changed):
        key = _uuid(replica_id)
        row = rows.get(key) if key is not None else None
        if row is None or row.generation != generation:  # gone or begun anew: not the one that was meant
            continue
        fact = after.get((replica_id, generation))
        record(
            actor=ACTOR,
            action="replica.ejected" if fact else "replica.readmitted",
            subject_kind="replica",
            subject_id=row.id,
            tenant_id=row.tenant_id,
            subject_label=row.short_id,
            reason=str(fact["reason"])[:64] if fact else "",
            message=str(fact["message"]) if fact else f"Gateway {gateway.name} sends it requests again.",
            data={"gateway": gateway.name, "generation": generation},
        )
        hints.push_on_commit(hints.tenant_topic(row.tenant_id), {"what": "deployments"})


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None

"""Budgets follow the books: what each key and tenant with a budget has used in its current period.

Gateways count by themselves and exactly; this is the seed of a counter that they have lost, and what people see. The
sums are kept in :class:`BudgetUse`, looked at once a minute, so that a route table costs the same with a long history.
"""

import dataclasses
import datetime
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from django.db import connection, transaction

from kernel import actors, clock, scope
from ledger import generations, hints
from ledger.record import record
from metering.models import BudgetUse
from metering.periods import budget_period
from tenants import terms
from tenants.models import ApiKey, BudgetUnit, Limited, Tenant

ACTOR: Final = actors.system("metering")

_COUNT: Final = """
    SELECT s.id, coalesce(sum(h.prompt_tokens + h.completion_tokens), 0)::bigint, coalesce(ceil(sum(h.cost)), 0)::bigint
    FROM jsonb_to_recordset(%s::jsonb) AS s(id uuid, tenant_id uuid, key_id uuid, start timestamptz, finish timestamptz)
    LEFT JOIN metering_usagehour AS h
      ON h.tenant_id = s.tenant_id AND h.hour >= s.start AND (s.finish IS NULL OR h.hour < s.finish)
      AND (s.key_id IS NULL OR h.key_id = s.key_id)
    GROUP BY s.id
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """A key or a tenant with a budget, and the period that the budget is in."""

    id: uuid.UUID
    tenant_id: uuid.UUID
    key_id: uuid.UUID | None
    label: str
    budget: terms.Budget
    start: datetime.datetime
    finish: datetime.datetime | None


def subject_of(row: Limited, now: datetime.datetime) -> Subject | None:
    """``row`` as a subject; ``None`` when it has no budget."""
    budget = terms.budget_of(row)
    if budget is None or not isinstance(row, ApiKey | Tenant):
        return None
    start, finish = budget_period(budget.duration, now)
    is_key = isinstance(row, ApiKey)
    return Subject(
        id=row.id,
        tenant_id=row.tenant_id if isinstance(row, ApiKey) else row.id,
        key_id=row.id if is_key else None,
        label=row.name,
        budget=budget,
        start=start,
        finish=finish,
    )


def subjects_of(rows: Iterable[Limited], now: datetime.datetime) -> list[Subject]:
    """Those of ``rows`` that have a budget."""
    return [subject for row in rows if (subject := subject_of(row, now)) is not None]


def count(subjects: Sequence[Subject]) -> dict[uuid.UUID, int]:
    """What the books hold of each now, by id, in one query. Hours are whole: every period begins with one."""
    if not subjects:
        return {}
    asked = [
        {
            "id": str(subject.id),
            "tenant_id": str(subject.tenant_id),
            "key_id": str(subject.key_id) if subject.key_id else None,
            "start": subject.start.isoformat(),
            "finish": subject.finish.isoformat() if subject.finish else None,
        }
        for subject in subjects
    ]
    with connection.cursor() as cursor:
        cursor.execute(_COUNT, [json.dumps(asked)])
        found = {ident: (tokens, cost) for ident, tokens, cost in cursor.fetchall()}
    return {one.id: found[one.id][one.budget.unit == BudgetUnit.COST] for one in subjects}


def used(subjects: Sequence[Subject]) -> dict[uuid.UUID, int]:
    """What each has used in its period: as counted within the last minute, or counted now where that is of another."""
    if not subjects:
        return {}
    noted = {row.subject_id: row for row in BudgetUse.objects.filter(subject_id__in=[one.id for one in subjects])}
    known = {one.id: noted[one.id].used for one in subjects if one.id in noted and _stands_for(noted[one.id], one)}
    return known | count([one for one in subjects if one.id not in known])


def _stands_for(row: BudgetUse, subject: Subject) -> bool:
    return (row.unit, row.period_start) == (subject.budget.unit, subject.start)


def refresh() -> bool:
    """Count all budgets anew; raise the route table's generation when any use has changed. True when it was raised.

    Called once a minute: with budgets in use the table moves at most that often because of them. A budget that is
    reached is noted in its tenant's audit log, once per period.
    """
    now = clock.now()
    with transaction.atomic(), scope.all_tenants():
        keys = ApiKey.objects.filter(budget_limit__isnull=False, revoked_at=None)
        subjects = subjects_of([*keys, *Tenant.objects.filter(budget_limit__isnull=False)], now)
        noted = {row.subject_id: row for row in BudgetUse.objects.select_for_update(no_key=True).order_by("subject_id")}
        counted = count(subjects)
        changed = [one for one in subjects if _differs(noted.get(one.id), one, counted[one.id])]
        gone = set(noted) - {one.id for one in subjects}
        _write(changed, counted, now)
        BudgetUse.objects.filter(subject_id__in=gone).delete()
        for one in changed:
            _announce(one, noted.get(one.id), counted[one.id])
        if changed:
            generations.bump(generations.ROUTES)
    return bool(changed)


def _differs(row: BudgetUse | None, subject: Subject, value: int) -> bool:
    return row is None or not _stands_for(row, subject) or row.used != value


def _write(changed: Iterable[Subject], counted: Mapping[uuid.UUID, int], now: datetime.datetime) -> None:
    rows = [
        BudgetUse(
            subject_id=one.id,
            tenant_id=one.tenant_id,
            unit=one.budget.unit,
            period_start=one.start,
            used=counted[one.id],
            counted_at=now,
        )
        for one in sorted(changed, key=lambda one: one.id)
    ]
    BudgetUse.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["subject_id"],
        update_fields=["tenant_id", "unit", "period_start", "used", "counted_at"],
    )


def _announce(subject: Subject, before: BudgetUse | None, value: int) -> None:
    hints.push_on_commit(hints.tenant_topic(subject.tenant_id), {"what": "usage"})
    was = before.used if before is not None and _stands_for(before, subject) else 0
    if was < subject.budget.limit <= value:
        record(
            actor=ACTOR,
            action="budget.reached",
            subject_kind="api_key" if subject.key_id else "tenant",
            subject_id=subject.id,
            tenant_id=subject.tenant_id,
            subject_label=subject.label,
            data={
                "limit": subject.budget.limit,
                "used": value,
                "unit": subject.budget.unit,
                "blocks": subject.budget.blocks,
                "period_start": subject.start.isoformat(),
            },
        )

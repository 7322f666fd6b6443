"""Limits with what is used beside them, for the people who have them."""

import dataclasses
import datetime
import uuid
from collections.abc import Sequence
from typing import Final

from django.db.models import Count, F, Sum

from kernel import clock, scope
from metering import budgets
from metering.models import UsageRecord
from tenants import selectors as tenancy
from tenants.models import ApiKey, Limited, Tenant

MINUTE: Final = datetime.timedelta(minutes=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Use:
    """What was used: in the last minute by requests that ended and were booked, and of the budget in its period.

    ``budget_used`` is in tokens or millionths of the currency; ``None`` without a budget.
    """

    requests_last_minute: int = 0
    tokens_last_minute: int = 0
    budget_used: int | None = None
    budget_period_start: datetime.datetime | None = None
    budget_period_end: datetime.datetime | None = None

    def budget_fraction(self, limit: int | None) -> float | None:
        """How much of a budget of ``limit`` is used; ``None`` without one."""
        return None if limit is None or self.budget_used is None else self.budget_used / limit


def of_tenant(tenant: Tenant) -> Use:
    """What all of the tenant's keys used together."""
    with scope.tenant(tenant.id):
        recent = UsageRecord.objects.filter(started_at__gt=clock.now() - MINUTE)
        found = recent.aggregate(requests=Count("id"), tokens=Sum(F("prompt_tokens") + F("completion_tokens")))
    return _with_budget(tenant, found["requests"], found["tokens"] or 0, budgets_now([tenant]))


def of_keys(tenant: Tenant, keys: Sequence[ApiKey]) -> dict[uuid.UUID, Use]:
    """What each of ``keys`` used, in two queries."""
    with scope.tenant(tenant.id):
        recent = UsageRecord.objects.filter(started_at__gt=clock.now() - MINUTE, key_id__in=[key.id for key in keys])
        rows = recent.order_by().values_list("key_id")
        found = {
            key_id: (requests, tokens)
            for key_id, requests, tokens in rows.annotate(
                requests=Count("id"), tokens=Sum(F("prompt_tokens") + F("completion_tokens"))
            )
        }
    spent = budgets_now(keys)
    return {key.id: _with_budget(key, *found.get(key.id, (0, 0)), spent) for key in keys}


def limited_keys(tenant: Tenant) -> list[ApiKey]:
    """Keys of ``tenant`` that are not revoked and have a limit or a budget of their own."""
    return [row for row in tenancy.keys_of(tenant).filter(revoked_at=None) if is_limited(row)]


def is_limited(row: Limited) -> bool:
    """True when anything about ``row`` is not unlimited."""
    limits = (row.requests_per_minute, row.tokens_per_minute, row.max_parallel_requests, row.budget_limit)
    return any(limit is not None for limit in limits)


Spent = dict[uuid.UUID, tuple[int, datetime.datetime, datetime.datetime | None]]


def budgets_now(rows: Sequence[Limited]) -> Spent:
    """(used, beginning, end) of the current period of each row with a budget; counted now, not a minute ago."""
    subjects = budgets.subjects_of(rows, clock.now())
    counted = budgets.count(subjects)
    return {one.id: (counted[one.id], one.start, one.finish) for one in subjects}


def _with_budget(row: Tenant | ApiKey, requests: int, tokens: int, spent: Spent) -> Use:
    used, start, finish = spent.get(row.id, (None, None, None))
    return Use(
        requests_last_minute=requests,
        tokens_last_minute=tokens,
        budget_used=used,
        budget_period_start=start,
        budget_period_end=finish,
    )

"""Limits and budgets in REST, under the names that users of other gateways know.

``max_budget`` is a number of tokens, or an amount of the currency; rows and wire count tokens, or millionths of it.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from rest_framework import serializers

from kernel import errors
from kernel.api.bodies import Body
from tenants.models import BudgetPeriod, BudgetUnit, Limited
from tenants.terms import MAX_BUDGET, PUBLIC_NAMES, RATES, Budget, budget_of

MILLION: Final = 1_000_000
RATE_NAMES: Final = {PUBLIC_NAMES[name]: name for name in RATES}
BUDGET_FIELDS: Final = ("max_budget", "budget_unit", "budget_duration", "budget_blocks")


class LimitsOut(serializers.Serializer[Any]):
    """Rate limits and budget of a key or a tenant."""

    rpm_limit = serializers.IntegerField(source="requests_per_minute", allow_null=True, read_only=True)
    tpm_limit = serializers.IntegerField(source="tokens_per_minute", allow_null=True, read_only=True)
    max_parallel_requests = serializers.IntegerField(allow_null=True, read_only=True)
    max_budget = serializers.SerializerMethodField()
    budget_unit = serializers.ChoiceField(choices=BudgetUnit.values, read_only=True)
    budget_duration = serializers.ChoiceField(choices=BudgetPeriod.values, read_only=True)
    budget_blocks = serializers.BooleanField(read_only=True, help_text="False: only alerts.")

    def get_max_budget(self, row: Limited) -> float | None:
        """Tokens, or an amount of the currency; null: no budget."""
        return amount(row.budget_limit, row.budget_unit)


class LimitsIn(Body):
    """What may be set; a field that is left out stays as it is, null takes the limit away."""

    rpm_limit = serializers.IntegerField(
        required=False, allow_null=True, min_value=1, max_value=RATES["requests_per_minute"],
        help_text="Requests in any minute.",
    )  # fmt: skip
    tpm_limit = serializers.IntegerField(
        required=False, allow_null=True, min_value=1, max_value=RATES["tokens_per_minute"],
        help_text="Tokens in any minute, prompt and completion.",
    )  # fmt: skip
    max_parallel_requests = serializers.IntegerField(
        required=False, allow_null=True, min_value=1, max_value=RATES["max_parallel_requests"]
    )
    max_budget = serializers.DecimalField(
        required=False, allow_null=True, max_digits=21, decimal_places=6, min_value=Decimal("0.000001"),
        help_text="Tokens, or an amount of the currency, in one budget_duration; null: no budget.",
    )  # fmt: skip
    budget_unit = serializers.ChoiceField(choices=BudgetUnit.values, required=False)
    budget_duration = serializers.ChoiceField(
        choices=BudgetPeriod.values, required=False, help_text="Calendar periods in UTC; none never begins anew."
    )
    budget_blocks = serializers.BooleanField(
        required=False, help_text="True refuses requests when the budget is used; false only alerts."
    )


def amount(limit: int | None, unit: str) -> float | None:
    """A stored number of a budget as people count it."""
    if limit is None:
        return None
    return limit / MILLION if unit == BudgetUnit.COST else limit


def stored(value: Decimal, unit: str) -> int:
    """Inverse of :func:`amount`.

    Raises:
        errors.InvalidInput: parts of a token, or more than can be counted.
    """
    number = value * MILLION if unit == BudgetUnit.COST else value
    if number != int(number):
        raise errors.InvalidInput("Tokens are counted whole.", data={"field": "max_budget"})
    if not 1 <= number <= MAX_BUDGET:
        raise errors.InvalidInput("max_budget is too large.", data={"field": "max_budget"})
    return int(number)


def changes(given: Mapping[str, Any], before: Limited | None = None) -> dict[str, Any]:
    """The changed fields of :class:`tenants.terms.Limits` in ``given``, which is :class:`LimitsIn`'s.

    Raises:
        errors.InvalidInput: another unit without saying how much of it.
    """
    found = {RATE_NAMES[name]: given[name] for name in RATE_NAMES if name in given}
    if any(name in given for name in BUDGET_FIELDS):
        found["budget"] = _budget(given, budget_of(before) if before is not None else None)
    return found


def _budget(given: Mapping[str, Any], old: Budget | None) -> Budget | None:
    if "max_budget" in given and given["max_budget"] is None:
        return None
    unit = given.get("budget_unit", old.unit if old else BudgetUnit.TOKENS.value)
    if "max_budget" in given:
        limit = stored(given["max_budget"], unit)
    elif old is None:
        return None  # a unit or a period of nothing
    elif unit != old.unit:
        raise errors.InvalidInput("Give max_budget together with another budget_unit.", data={"field": "max_budget"})
    else:
        limit = old.limit
    return Budget(
        limit=limit,
        unit=unit,
        duration=given.get("budget_duration", old.duration if old else BudgetPeriod.MONTH.value),
        blocks=given.get("budget_blocks", old.blocks if old else True),
    )

"""Fields of limits and budgets, shared by the forms of keys and tenants; named as in REST."""

from typing import Any

from django import forms
from django.conf import settings
from django.utils.translation import gettext_lazy as _

from console.forms import ExactField, NumberField
from console.presenters.limits import PERIODS
from tenants.api.limits import amount, stored
from tenants.models import BudgetPeriod, BudgetUnit, Limited
from tenants.terms import RATES, Budget

_DOES = (("blocks", _("refuse requests")), ("alerts", _("only alert")))


class LimitFields(forms.Form):
    """Empty is no limit."""

    rpm_limit = NumberField(label=_("Requests"), required=False, min_value=1, max_value=RATES["requests_per_minute"])
    tpm_limit = NumberField(label=_("Tokens"), required=False, min_value=1, max_value=RATES["tokens_per_minute"])
    max_parallel_requests = NumberField(
        label=_("At once"), required=False, min_value=1, max_value=RATES["max_parallel_requests"]
    )
    max_budget = ExactField(label=_("Budget"), required=False, max_digits=21, decimal_places=6, min_value=0)
    budget_unit = forms.ChoiceField(label=_("Counted in"), required=False, choices=())
    budget_duration = forms.ChoiceField(
        label=_("Begins anew"), required=False, choices=list(PERIODS.items()), initial=BudgetPeriod.MONTH
    )
    budget_does = forms.ChoiceField(label=_("When it is used up"), required=False, choices=_DOES, initial="blocks")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        units = [(BudgetUnit.TOKENS.value, _("tokens")), (BudgetUnit.COST.value, settings.CURRENCY)]
        self.fields["budget_unit"].choices = units  # type: ignore[attr-defined]

    def limits(self) -> dict[str, Any]:
        """The fields of :class:`tenants.terms.Limits`.

        Raises:
            errors.InvalidInput: parts of a token, or more than can be counted.
        """
        data = self.cleaned_data
        unit = data["budget_unit"] or BudgetUnit.TOKENS.value
        budget = None
        if data["max_budget"] is not None:
            budget = Budget(
                limit=stored(data["max_budget"], unit),
                unit=unit,
                duration=data["budget_duration"] or BudgetPeriod.MONTH.value,
                blocks=data["budget_does"] != "alerts",
            )
        return {
            "requests_per_minute": data["rpm_limit"],
            "tokens_per_minute": data["tpm_limit"],
            "max_parallel_requests": data["max_parallel_requests"],
            "budget": budget,
        }


def initial_limits(row: Limited) -> dict[str, Any]:
    """What the fields show for a row."""
    limit = amount(row.budget_limit, row.budget_unit)
    return {
        "rpm_limit": row.requests_per_minute,
        "tpm_limit": row.tokens_per_minute,
        "max_parallel_requests": row.max_parallel_requests,
        "max_budget": None if limit is None else f"{limit:.6f}".rstrip("0").rstrip("."),
        "budget_unit": row.budget_unit,
        "budget_duration": row.budget_duration,
        "budget_does": "blocks" if row.budget_blocks else "alerts",
    }

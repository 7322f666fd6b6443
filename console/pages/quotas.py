"""A tenant's quota, for platform admins: what it may hold, what nobody may take back, and whom a change would hurt."""

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console import keyset, problems
from console.forms import AmountField, NumberField, styled
from console.presenters.quotas import effects
from console.web import Place, came_from, done, platform_page
from kernel import errors
from kernel.texts import sought
from metering import limits as usage
from quotas import preview as previews
from quotas import selectors as quotas
from quotas import services as quota_services
from quotas.amount import UNLIMITED, Amount, Kind, Line
from quotas.models import Limits, QuotaGroup
from quotas.tree import DEFAULT_WEIGHT, MAX_WEIGHT
from tenants import access
from tenants import selectors as tenants

GIB = 1024**3
PER_PAGE = 50
#: Members of a group that its row names.
_NAMES = 6
_MAX_GPUS = 1_000_000
#: Of GiB: less than a byte.
_DECIMALS = 10
_FIELDS = {
    "guaranteed_gpu_millis": "guaranteed_gpus", "guaranteed_hbm_bytes": "guaranteed_hbm", "over_quota_weight": "weight",
    "gpu_millis": "gpus", "hbm_bytes": "hbm", "replicas": "replicas", "storage_bytes": "storage", "group": "name",
}  # fmt: skip


class Ceilings(forms.Form):
    """Limits of a tenant or of a group; an empty one is "no limit"."""

    gpus = AmountField(
        label=gettext_lazy("GPUs"), required=False, min_value=0, max_value=_MAX_GPUS,
        help_text=gettext_lazy("A MIG slice counts its share of a GPU, a CPU nothing."),
    )  # fmt: skip
    hbm = AmountField(label="HBM", required=False, min_value=0, max_value=2**30)
    replicas = NumberField(label=gettext_lazy("Replicas"), required=False, min_value=0, max_value=100_000)
    storage = AmountField(label=gettext_lazy("Storage"), required=False, min_value=0, max_value=2**30)

    def limits(self) -> dict[Kind, Amount]:
        """What the quotas room takes as ``changes``."""
        data = self.cleaned_data
        return {
            Kind.GPU_MILLIS: _amount(data["gpus"], 1000),
            Kind.HBM_BYTES: _amount(data["hbm"], GIB),
            Kind.REPLICAS: _amount(data["replicas"], 1),
            Kind.STORAGE_BYTES: _amount(data["storage"], GIB),
        }

    def refuse(self, exc: errors.PlatformError) -> None:
        """Show a refusal of the quotas room at the field that it is about."""
        name = _FIELDS.get(exc.data.get("field", ""), "")
        self.add_error(name if name in self.fields else None, problems.describe(exc).text)


class QuotaForm(Ceilings):
    """Limits of a tenant; an empty guarantee is "all that the limit allows"."""

    guaranteed_gpus = AmountField(
        label=gettext_lazy("Of these guaranteed"), required=False, min_value=0, max_value=_MAX_GPUS
    )
    guaranteed_hbm = AmountField(label=gettext_lazy("Of this guaranteed"), required=False, min_value=0, max_value=2**30)
    weight = NumberField(
        label=gettext_lazy("Weight above the guarantee"), required=False, min_value=0, max_value=MAX_WEIGHT,
        help_text=gettext_lazy("Share in what others leave free; 100 is usual."),
    )  # fmt: skip
    group = forms.ChoiceField(label=gettext_lazy("Group"), required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = QuotaGroup.objects.order_by("name").values_list("name", flat=True)
        self.fields["group"].choices = [("", _("none")), *((name, name) for name in names)]  # type: ignore[attr-defined]
        styled(self)

    def arguments(self) -> dict[str, Any]:
        """What the quotas room takes."""
        data = self.cleaned_data
        weight = data["weight"]
        return {
            "changes": self.limits(),
            "guaranteed": {
                Kind.GPU_MILLIS: _amount(data["guaranteed_gpus"], 1000),
                Kind.HBM_BYTES: _amount(data["guaranteed_hbm"], GIB),
            },
            "weight": DEFAULT_WEIGHT if weight is None else weight,
            "group": data["group"],
        }


def initial_of(row: Limits) -> dict[str, str]:
    """The limits of a tenant's or a group's row as :class:`Ceilings` shows them."""
    return {
        "gpus": _shown(row.gpu_millis, 1000), "hbm": _shown(row.hbm_bytes, GIB),
        "replicas": _shown(row.replicas, 1), "storage": _shown(row.storage_bytes, GIB),
    }  # fmt: skip


def held_of(lines: Iterable[Line]) -> dict[str, Any]:
    """What is held of each kind, by the names that the dialogs use."""
    used = {line.kind: line.used.number or 0 for line in lines}
    return {
        "gpus": f"{used[Kind.GPU_MILLIS] / 1000:g}", "hbm": used[Kind.HBM_BYTES], "replicas": used[Kind.REPLICAS],
        "storage": used[Kind.STORAGE_BYTES],
    }  # fmt: skip


@platform_page
def index(request: HttpRequest, place: Place) -> HttpResponse:
    """What every tenant may hold and holds, what of it is guaranteed or borrowed, its limits, and the groups."""
    wanted = sought(request.GET.get("q", ""))
    found = keyset.page_by_name(request, tenants.find(wanted), PER_PAGE, {"q": wanted})
    lines, terms = quotas.lines_by_tenant(found.rows), quotas.terms_by_tenant(found.rows)
    spent = usage.budgets_now(found.rows)
    rows = [
        {
            "tenant": tenant,
            "terms": terms[tenant.id],
            "lines": by_kind(lines[tenant.id]),
            "use": {"budget_used": spent[tenant.id][0] if tenant.id in spent else None},
        }
        for tenant in found.rows
    ]
    groups = [
        {
            "group": one.group, "lines": by_kind(one.lines), "names": [m.tenant.slug for m in one.members[:_NAMES]],
            "more": max(0, len(one.members) - _NAMES),
        }
        for one in quotas.groups()
    ]  # fmt: skip
    context = {"rows": rows, "groups": groups, "wanted": wanted, "keyset": found}
    return render(request, "console/pages/quotas.html", context)


@platform_page
def quota(request: HttpRequest, place: Place, slug: str) -> HttpResponse:
    """The dialog with what is held beside each limit, and the act."""
    tenant = access.access_tenant(place.actor, slug)
    terms = quotas.terms_of(tenant)
    initial = initial_of(terms) | {
        "guaranteed_gpus": _shown(terms.guaranteed_gpu_millis, 1000), "weight": terms.over_quota_weight,
        "guaranteed_hbm": _shown(terms.guaranteed_hbm_bytes, GIB), "group": terms.group.name if terms.group else "",
    }  # fmt: skip
    form = QuotaForm(request.POST if request.method == "POST" else None, initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            quota_services.set_quota(actor=place.actor, tenant=tenant, **form.arguments())
        except errors.PlatformError as exc:
            form.refuse(exc)
        else:
            text = _("The quota of %(name)s is changed.") % {"name": tenant.name}
            lists = [reverse("console:platform-tenants"), reverse("console:platform-quotas")]
            lists += [group_page(terms.group)] if terms.group else []
            return done(request, text, came_from(request, *lists))
    context = {"form": form, "subject": tenant, "held": held_of(quotas.lines_of(tenant))}
    return render(request, "console/pages/quota_form.html", context, status=422 if request.method == "POST" else 200)


@platform_page
def preview(request: HttpRequest, place: Place, slug: str) -> HttpResponse:
    """Whom the quota in the form would hurt, as a fragment; nothing is written. Answers in every case."""
    tenant = access.access_tenant(place.actor, slug)
    form = QuotaForm(request.POST)
    return previewed(request, form, lambda: previews.preview(actor=place.actor, tenant=tenant, **form.arguments()))


def previewed(request: HttpRequest, form: Ceilings, look: Callable[[], previews.Preview]) -> HttpResponse:
    """The fragment that says what ``form`` would do, or why it is refused; empty while fields are wrong."""
    context: dict[str, Any] = {}
    if form.is_valid():
        try:
            context["effects"] = effects(look())
        except errors.PlatformError as exc:
            context["refusal"] = problems.describe(exc).text
    return render(request, "console/parts/quota_preview.html", context)


def by_kind(lines: Iterable[Line]) -> dict[str, Line]:
    """Lines by their kinds' names, as templates read them."""
    return {line.kind.value: line for line in lines}


def group_page(group: QuotaGroup) -> str:
    """The address of a group's page."""
    return reverse("console:platform-quota-group", kwargs={"group": group.name})


def _amount(given: float | None, unit: int) -> Amount:
    return UNLIMITED if given is None else Amount.of(round(given * unit))


def _shown(number: int, unit: int) -> str:
    """So many digits that what is shown is read back as the same number."""
    return "" if number < 0 else f"{Decimal(number) / unit:.{_DECIMALS}f}".rstrip("0").rstrip(".")

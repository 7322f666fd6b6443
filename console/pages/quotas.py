"""A tenant's quota, for platform admins: what it may hold, what nobody may take back, and whom a change would hurt."""

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console import keyset, problems
from console.forms import NumberField, styled
from console.web import Place, came_from, done, platform_page
from kernel import errors
from kernel.texts import sought
from metering import limits as usage
from quotas import preview as previews
from quotas import selectors as quotas
from quotas import services as quota_services
from quotas.amount import UNLIMITED, Amount, Kind
from quotas.models import QuotaGroup
from quotas.tree import DEFAULT_WEIGHT, MAX_WEIGHT
from tenants import access
from tenants import selectors as tenants

GIB = 1024**3
PER_PAGE = 50
_MAX_GPUS = 1_000_000
_FIELDS = {
    "guaranteed_gpu_millis": "guaranteed_gpus", "guaranteed_hbm_bytes": "guaranteed_hbm", "over_quota_weight": "weight",
}  # fmt: skip


class QuotaForm(forms.Form):
    """Limits of a tenant; an empty limit is "no limit", an empty guarantee "all that the limit allows"."""

    gpus = forms.FloatField(
        label=gettext_lazy("GPUs"), required=False, min_value=0, max_value=_MAX_GPUS,
        help_text=gettext_lazy("A MIG slice counts its share of a GPU, a CPU nothing."),
    )  # fmt: skip
    guaranteed_gpus = forms.FloatField(
        label=gettext_lazy("Of these guaranteed"), required=False, min_value=0, max_value=_MAX_GPUS
    )
    hbm = forms.FloatField(label="HBM", required=False, min_value=0, max_value=2**30)
    guaranteed_hbm = forms.FloatField(
        label=gettext_lazy("Of this guaranteed"), required=False, min_value=0, max_value=2**30
    )
    replicas = NumberField(label=gettext_lazy("Replicas"), required=False, min_value=0, max_value=100_000)
    storage = forms.FloatField(label=gettext_lazy("Storage"), required=False, min_value=0, max_value=2**30)
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
            "changes": {
                Kind.GPU_MILLIS: _amount(data["gpus"], 1000),
                Kind.HBM_BYTES: _amount(data["hbm"], GIB),
                Kind.REPLICAS: _amount(data["replicas"], 1),
                Kind.STORAGE_BYTES: _amount(data["storage"], GIB),
            },
            "guaranteed": {
                Kind.GPU_MILLIS: _amount(data["guaranteed_gpus"], 1000),
                Kind.HBM_BYTES: _amount(data["guaranteed_hbm"], GIB),
            },
            "weight": DEFAULT_WEIGHT if weight is None else weight,
            "group": data["group"],
        }


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
            "lines": {line.kind.value: line for line in lines[tenant.id]},
            "use": {"budget_used": spent[tenant.id][0] if tenant.id in spent else None},
        }
        for tenant in found.rows
    ]
    groups = [{**one, "lines": {line.kind.value: line for line in one["lines"]}} for one in quotas.groups()]
    context = {"rows": rows, "groups": groups, "wanted": wanted, "keyset": found}
    return render(request, "console/pages/quotas.html", context)


@platform_page
def quota(request: HttpRequest, place: Place, slug: str) -> HttpResponse:
    """The dialog with what is held beside each limit, and the act."""
    tenant = access.access_tenant(place.actor, slug)
    terms, lines = quotas.terms_of(tenant), {line.kind: line for line in quotas.lines_of(tenant)}
    initial = {
        "gpus": _shown(terms.gpu_millis, 1000), "guaranteed_gpus": _shown(terms.guaranteed_gpu_millis, 1000),
        "hbm": _shown(terms.hbm_bytes, GIB), "guaranteed_hbm": _shown(terms.guaranteed_hbm_bytes, GIB),
        "replicas": _shown(terms.replicas, 1), "storage": _shown(terms.storage_bytes, GIB),
        "weight": terms.over_quota_weight, "group": terms.group.name if terms.group is not None else "",
    }  # fmt: skip
    form = QuotaForm(request.POST if request.method == "POST" else None, initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            quota_services.set_quota(actor=place.actor, tenant=tenant, **form.arguments())
        except errors.PlatformError as exc:
            field = _FIELDS.get(exc.data.get("field", ""))
            form.add_error(field, problems.describe(exc).text)
        else:
            text = _("The quota of %(name)s is changed.") % {"name": tenant.name}
            lists = reverse("console:platform-tenants"), reverse("console:platform-quotas")
            return done(request, text, came_from(request, *lists))
    context = {
        "form": form, "subject": tenant, "hbm": lines[Kind.HBM_BYTES].used.number,
        "replicas": lines[Kind.REPLICAS].used.number, "storage": lines[Kind.STORAGE_BYTES].used.number,
        "gpus": f"{(lines[Kind.GPU_MILLIS].used.number or 0) / 1000:g}",
    }  # fmt: skip
    return render(request, "console/pages/quota_form.html", context, status=422 if request.method == "POST" else 200)


@platform_page
def preview(request: HttpRequest, place: Place, slug: str) -> HttpResponse:
    """Whom the quota in the form would hurt, as a fragment; nothing is written. Answers in every case."""
    tenant = access.access_tenant(place.actor, slug)
    form = QuotaForm(request.POST)
    context: dict[str, Any] = {}
    if form.is_valid():
        try:
            found = previews.preview(actor=place.actor, tenant=tenant, **form.arguments())
        except errors.PlatformError as exc:
            context["refusal"] = problems.describe(exc).text
        else:
            context["found"] = found
            context["over"] = [
                {"kind": change.after.kind, "amount": change.over} for change in found.changes if change.over.number
            ]
    return render(request, "console/parts/quota_preview.html", context)


def _amount(given: float | None, unit: int) -> Amount:
    return UNLIMITED if given is None else Amount.of(round(given * unit))


def _shown(number: int, unit: int) -> str:
    return "" if number < 0 else f"{number / unit:.6g}"

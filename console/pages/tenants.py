"""Tenants, for platform admins: the list with what each holds, creating one, changing a quota."""

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console import problems
from console.forms import NumberField, styled
from console.web import Place, done, platform_page
from kernel import errors
from quotas import selectors as quotas
from quotas import services as quota_services
from quotas.amount import UNLIMITED, Amount, Kind
from serving import selectors as serving
from tenants import access, services
from tenants.models import Tenant, User

GIB = 1024**3


class TenantForm(forms.Form):
    """A new tenant."""

    slug = forms.CharField(
        label=gettext_lazy("Short name"), max_length=40, help_text=gettext_lazy("Stands in addresses and model names.")
    )
    name = forms.CharField(label=gettext_lazy("Name"), max_length=120)
    owner = forms.EmailField(
        label=gettext_lazy("Owner’s e-mail address"),
        required=False,
        help_text=gettext_lazy("Of an account that exists; optional."),
    )

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        styled(self)


class QuotaForm(forms.Form):
    """Limits of a tenant; an empty field is "no limit"."""

    hbm = forms.FloatField(label="HBM", required=False, min_value=0, max_value=2**30)
    replicas = NumberField(label=gettext_lazy("Replicas"), required=False, min_value=0, max_value=100_000)
    storage = forms.FloatField(label=gettext_lazy("Storage"), required=False, min_value=0, max_value=2**30)

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        styled(self)

    def changes(self) -> dict[Kind, Amount]:
        """The limits as the quotas room wants them."""
        data = self.cleaned_data
        return {
            Kind.HBM_BYTES: UNLIMITED if data["hbm"] is None else Amount.of(int(data["hbm"] * GIB)),
            Kind.REPLICAS: UNLIMITED if data["replicas"] is None else Amount.of(data["replicas"]),
            Kind.STORAGE_BYTES: UNLIMITED if data["storage"] is None else Amount.of(int(data["storage"] * GIB)),
        }


def rows() -> list[dict[str, Any]]:
    """Every tenant with its quota lines and how many replicas it has."""
    return [
        {
            "tenant": tenant,
            "quota": quotas.lines_of(tenant),
            "replicas": sum(serving.replica_counts(tenant).values()),
        }
        for tenant in Tenant.objects.order_by("name")
    ]


@platform_page
def index(request: HttpRequest, place: Place) -> HttpResponse:
    """The list."""
    return render(request, "console/pages/tenants.html", {"rows": rows()})


@platform_page
def create(request: HttpRequest, place: Place) -> HttpResponse:
    """The dialog and the act."""
    form = TenantForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        email = form.cleaned_data["owner"]
        owner = User.objects.filter(email__iexact=email, is_active=True).first() if email else None
        if email and owner is None:
            form.add_error("owner", _("Nobody has an account with this address."))
        else:
            try:
                made = services.create_tenant(
                    actor=place.actor, slug=form.cleaned_data["slug"], name=form.cleaned_data["name"], owner=owner
                )
            except errors.PlatformError as exc:
                field = exc.data.get("field")
                form.add_error(field if field in form.fields else None, problems.describe(exc).text)
            else:
                text = _("The tenant %(name)s exists now.") % {"name": made.name}
                return done(request, text, reverse("console:platform-tenants"))
    status = 422 if request.method == "POST" else 200
    return render(request, "console/pages/tenant_form.html", {"form": form}, status=status)


@platform_page
def quota(request: HttpRequest, place: Place, slug: str) -> HttpResponse:
    """The dialog with what is held beside each limit, and the act."""
    tenant = access.access_tenant(place.actor, slug)
    lines = {line.kind: line for line in quotas.lines_of(tenant)}
    initial = {
        "hbm": _gib(lines[Kind.HBM_BYTES].limit),
        "replicas": lines[Kind.REPLICAS].limit.number,
        "storage": _gib(lines[Kind.STORAGE_BYTES].limit),
    }
    form = QuotaForm(request.POST if request.method == "POST" else None, initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            quota_services.set_quota(actor=place.actor, tenant=tenant, changes=form.changes())
        except errors.PlatformError as exc:
            form.add_error(None, problems.describe(exc).text)
        else:
            text = _("The quota of %(name)s is changed.") % {"name": tenant.name}
            return done(request, text, reverse("console:platform-tenants"))
    context = {
        "form": form, "subject": tenant, "hbm": lines[Kind.HBM_BYTES].used.number,
        "replicas": lines[Kind.REPLICAS].used.number, "storage": lines[Kind.STORAGE_BYTES].used.number,
    }  # fmt: skip
    return render(request, "console/pages/quota_form.html", context, status=422 if request.method == "POST" else 200)


def _gib(limit: Amount) -> str:
    return "" if limit.number is None else f"{limit.number / GIB:.6g}"

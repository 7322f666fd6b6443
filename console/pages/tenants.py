"""Tenants, for platform admins: the list with what each holds, creating one, changing limits."""

from collections.abc import Sequence
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console import keyset, problems
from console.forms import AmountField, styled
from console.limitforms import LimitFields, initial_limits
from console.web import Place, came_from, done, platform_page
from kernel import errors
from kernel.texts import sought
from metering import limits as usage
from quotas import selectors as quotas
from serving import selectors as serving
from tenants import access, selectors, services
from tenants.models import Tenant, User
from tenants.terms import Limits

PER_PAGE = 40
ON_OVERVIEW = 10


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


class LimitsForm(LimitFields):
    """What all keys of a tenant together may use."""

    weight = AmountField(
        label=gettext_lazy("Weight"), required=False, min_value=services.MIN_WEIGHT, max_value=services.MAX_WEIGHT,
        help_text=gettext_lazy("Share of an engine beside others who wait; 1 is usual."),
    )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        styled(self)


def rows(tenants: Sequence[Tenant]) -> list[dict[str, Any]]:
    """``tenants`` with their quota lines and how many replicas each has; as many queries as for one."""
    lines, replicas = quotas.lines_by_tenant(tenants), serving.replicas_by_tenant()
    return [{"tenant": tenant, "quota": lines[tenant.id], "replicas": replicas.get(tenant.id, 0)} for tenant in tenants]


def newest() -> list[dict[str, Any]]:
    """The rows of the few newest tenants, for the overview."""
    return rows(list(Tenant.objects.order_by("-id")[:ON_OVERVIEW]))


@platform_page
def index(request: HttpRequest, place: Place) -> HttpResponse:
    """The list, newest first, found by name or short name."""
    wanted = sought(request.GET.get("q", ""))
    page = keyset.page_by_name(request, selectors.find(wanted), PER_PAGE, {"q": wanted})
    context = {"rows": rows(page.rows), "keyset": page, "wanted": wanted}
    return render(request, "console/pages/tenants.html", context)


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
def limits(request: HttpRequest, place: Place, slug: str) -> HttpResponse:
    """The dialog of rate limits, budget and weight, and the act."""
    tenant = access.access_tenant(place.actor, slug)
    initial = {**initial_limits(tenant), "weight": f"{tenant.weight:g}"}
    form = LimitsForm(request.POST if request.method == "POST" else None, initial=initial)
    if request.method == "POST" and form.is_valid():
        weight = form.cleaned_data["weight"]
        try:
            services.set_tenant_limits(
                actor=place.actor,
                tenant=tenant,
                limits=Limits(**form.limits()),
                weight=1.0 if weight is None else weight,
            )
        except errors.PlatformError as exc:
            field = exc.data.get("field")
            form.add_error(field if field in form.fields else None, problems.describe(exc).text)
        else:
            text = _("The limits of %(name)s are changed.") % {"name": tenant.name}
            lists = reverse("console:platform-tenants"), reverse("console:platform-quotas")
            return done(request, text, came_from(request, *lists))
    context = {"form": form, "subject": tenant, "use": usage.of_tenant(tenant)}
    return render(request, "console/pages/limits_form.html", context, status=422 if request.method == "POST" else 200)


class SuspendForm(forms.Form):
    """Why a tenant is stopped."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"), max_length=2000, widget=forms.Textarea(attrs={"rows": 2}),
        help_text=gettext_lazy("A sentence for the tenant’s audit log."),
    )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        styled(self)


@platform_page
def suspend(request: HttpRequest, place: Place, slug: str) -> HttpResponse:
    """The dialog that says what stops and what goes on, and the act."""
    tenant = access.access_tenant(place.actor, slug)
    form = SuspendForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        services.suspend_tenant(actor=place.actor, tenant=tenant, reason=form.cleaned_data["reason"])
        text = _("The tenant %(name)s is suspended.") % {"name": tenant.name}
        return done(request, text, reverse("console:platform-tenants"))
    context = {"form": form, "subject": tenant, "replicas": sum(serving.replica_counts(tenant).values())}
    status = 422 if request.method == "POST" else 200
    return render(request, "console/pages/tenant_suspend.html", context, status=status)


@platform_page
def resume(request: HttpRequest, place: Place, slug: str) -> HttpResponse:
    """The dialog and the act."""
    tenant = access.access_tenant(place.actor, slug)
    if request.method != "POST":
        return render(request, "console/pages/tenant_resume.html", {"subject": tenant})
    services.resume_tenant(actor=place.actor, tenant=tenant)
    text = _("The tenant %(name)s works again.") % {"name": tenant.name}
    return done(request, text, reverse("console:platform-tenants"))

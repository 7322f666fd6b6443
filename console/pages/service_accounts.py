"""Service accounts: making, changing, ending them, and keys of theirs. They are listed with the members."""

import datetime
import uuid

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.cache import never_cache

from console import problems
from console.forms import styled
from console.freshness import before_secrets
from console.pages.members import ROLES
from console.queries import callable_names
from console.web import Here, done, refused, tenant_page
from kernel import clock, errors
from tenants import access, selectors, service_accounts, services
from tenants.models import KeyScope
from tenants.roles import SERVICE_ROLES, Permission, Role

_ROLES = [choice for choice in ROLES if choice[0] in {role.value for role in SERVICE_ROLES}]
_DAYS = (
    ("30", gettext_lazy("in 30 days")),
    ("90", gettext_lazy("in 90 days")),
    ("365", gettext_lazy("in 1 year")),
    ("", gettext_lazy("never")),
)


class AccountForm(forms.Form):
    """A new service account."""

    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=80, help_text=gettext_lazy("What acts under it, for instance “CI”.")
    )
    role = forms.ChoiceField(label=gettext_lazy("Role"), choices=_ROLES, initial=Role.DEVELOPER.value)

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        styled(self)


class AccountKeyForm(forms.Form):
    """A key of a service account."""

    name = forms.CharField(label=gettext_lazy("Name"), max_length=120, help_text=gettext_lazy("What uses this key."))
    expires = forms.ChoiceField(label=gettext_lazy("Expires"), choices=_DAYS, required=False, initial="90")
    scopes = forms.MultipleChoiceField(
        label=gettext_lazy("May do"),
        choices=[
            (KeyScope.INFERENCE.value, gettext_lazy("Inference: call endpoints through the gateway")),
            (KeyScope.MANAGE.value, gettext_lazy("Manage: use the REST API as its role allows")),
        ],
        widget=forms.CheckboxSelectMultiple,
        initial=[KeyScope.MANAGE.value],
        error_messages={"required": gettext_lazy("Choose at least one.")},
    )

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        styled(self)


@tenant_page(get=Permission.MANAGE_MEMBERS, post=Permission.MANAGE_MEMBERS)
def create(request: HttpRequest, here: Here) -> HttpResponse:
    """The dialog and the act."""
    form = AccountForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        name = form.cleaned_data["name"]
        try:
            service_accounts.create_service_account(
                actor=here.actor, tenant=here.tenant, name=name, role=Role(form.cleaned_data["role"])
            )
        except errors.PlatformError as exc:
            field = exc.data.get("field")
            form.add_error(field if field in form.fields else None, problems.describe(exc).text)
        else:
            return done(request, _("The service account %(name)s exists now.") % {"name": name}, _back(here))
    status = 422 if request.method == "POST" else 200
    return render(request, "console/pages/service_account_form.html", {"form": form}, status=status)


@tenant_page(post=Permission.MANAGE_MEMBERS)
def change(request: HttpRequest, here: Here, account_id: uuid.UUID) -> HttpResponse:
    """Another role."""
    account = access.access_service_account(here.actor, here.tenant, account_id, Permission.MANAGE_MEMBERS)
    try:
        role = Role(request.POST.get("role", ""))
        service_accounts.set_service_role(actor=here.actor, tenant=here.tenant, account=account, role=role)
    except ValueError:
        return refused(request, errors.InvalidInput(_("There is no such role.")), _back(here))
    except errors.PlatformError as exc:
        return refused(request, exc, _back(here))
    return done(request, _("%(who)s has another role now.") % {"who": account.name}, _back(here))


@tenant_page(get=Permission.MANAGE_MEMBERS, post=Permission.MANAGE_MEMBERS)
def verb(request: HttpRequest, here: Here, account_id: uuid.UUID, verb: str) -> HttpResponse:
    """Disable, enable, delete: the dialog that says what it means, and the act."""
    account = access.access_service_account(here.actor, here.tenant, account_id, Permission.MANAGE_MEMBERS)
    if verb not in ("disable", "enable", "delete"):
        raise errors.NotFound(_("There is no such act."), code="not_found")
    if request.method != "POST":
        keys = selectors.keys_of_account(account).filter(revoked_at=None).count()
        return render(
            request, "console/pages/service_account_verb.html", {"account": account, "verb": verb, "keys": keys}
        )
    given = {"actor": here.actor, "tenant": here.tenant, "account": account}
    if verb == "enable":
        service_accounts.enable_service_account(**given)  # type: ignore[arg-type]
        return done(request, _("%(name)s can have keys again.") % {"name": account.name}, _back(here))
    act = service_accounts.delete_service_account if verb == "delete" else service_accounts.disable_service_account
    count = act(**given)  # type: ignore[arg-type]
    ended = _("The service account %(name)s is deleted.") if verb == "delete" else _("%(name)s is disabled.")
    keys_text = ngettext("%(count)s key is revoked.", "%(count)s keys are revoked.", count) % {"count": count}
    return done(request, f"{ended % {'name': account.name}} {keys_text}", _back(here))


@never_cache
@tenant_page(get=Permission.MANAGE_MEMBERS, post=Permission.MANAGE_MEMBERS)
@before_secrets
def create_key(request: HttpRequest, here: Here, account_id: uuid.UUID) -> HttpResponse:
    """The dialog, and the new key's text in the answer to its POST."""
    account = access.access_service_account(here.actor, here.tenant, account_id, Permission.MANAGE_MEMBERS)
    form = AccountKeyForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        days = int(form.cleaned_data["expires"] or 0)
        try:
            key, text = services.create_api_key(
                actor=here.actor,
                tenant=here.tenant,
                name=form.cleaned_data["name"],
                scopes=form.cleaned_data["scopes"],
                expires_at=clock.now() + datetime.timedelta(days=days) if days else None,
                service_account=account,
            )
        except errors.PlatformError as exc:
            form.add_error(None, problems.describe(exc).text)
        else:
            names = callable_names(here)
            context = {"key": key, "secret": text, "account": account, "model": names[0] if names else ""}
            return render(request, "console/pages/service_account_key.html", context)
    status = 422 if request.method == "POST" else 200
    context = {"form": form, "account": account}
    return render(request, "console/pages/service_account_key_form.html", context, status=status)


def _back(here: Here) -> str:
    return reverse("console:members", kwargs={"slug": here.tenant.slug})

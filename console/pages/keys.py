"""API keys: list, create and rotate (the text is shown once, in the answer to that request alone), edit, revoke."""

import dataclasses
import datetime
import uuid
from typing import Any, Final

from django import forms
from django.conf import settings
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.cache import never_cache

from console import keyset, problems
from console.forms import styled
from console.freshness import before_secrets
from console.limitforms import LimitFields, initial_limits
from console.presenters import samples
from console.queries import callable_names
from console.web import Here, done, refused, tenant_page
from dispatch import revocation
from kernel import clock, errors
from metering import limits
from tenants import access, selectors, services
from tenants.models import ApiKey, Criticality, KeyScope
from tenants.roles import Permission
from tenants.terms import Terms

SOON = datetime.timedelta(days=7)
PER_PAGE = 50
_EXPIRIES = (
    ("", gettext_lazy("never")),
    ("1", gettext_lazy("in 1 day")),
    ("30", gettext_lazy("in 30 days")),
    ("90", gettext_lazy("in 90 days")),
    ("365", gettext_lazy("in 1 year")),
)
KEEP: Final = "keep"
_OVERLAPS = (
    ("0", gettext_lazy("not any more")),
    ("3600", gettext_lazy("for 1 hour")),
    ("86400", gettext_lazy("for 1 day")),
    ("604800", gettext_lazy("for 7 days")),
)


class TermsForm(LimitFields):
    """What a key may, and what it is called."""

    name = forms.CharField(label=gettext_lazy("Name"), max_length=120, help_text=gettext_lazy("What uses this key."))
    expires = forms.ChoiceField(label=gettext_lazy("Expires"), choices=_EXPIRIES, required=False, initial="90")
    allowed_endpoints = forms.MultipleChoiceField(
        label=gettext_lazy("Endpoints"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=gettext_lazy("None chosen means all."),
    )
    allowed_addresses = forms.CharField(
        label=gettext_lazy("Only from these networks"),
        required=False,
        max_length=4000,
        widget=forms.Textarea(attrs={"rows": 2, "placeholder": "10.0.0.0/8"}),
        help_text=gettext_lazy("One in a line; empty means from anywhere."),
    )
    criticalities = forms.MultipleChoiceField(
        label=gettext_lazy("Priority"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        choices=[(Criticality.CRITICAL.value, gettext_lazy("Requests may call themselves critical: shed last"))],
    )

    def __init__(self, *args: Any, endpoints: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["allowed_endpoints"].choices = [(name, name) for name in endpoints]  # type: ignore[attr-defined]
        styled(self)

    def terms(self, before: ApiKey | None = None) -> Terms:
        """What was filled in.

        Raises:
            errors.InvalidInput: a budget that cannot be counted.
        """
        data = self.cleaned_data
        expires = before.expires_at if before is not None else None
        if data["expires"] != KEEP:
            days = int(data["expires"] or 0)
            expires = clock.now() + datetime.timedelta(days=days) if days else None
        return Terms(
            **self.limits(),
            expires_at=expires,
            allowed_endpoints=tuple(data["allowed_endpoints"]),
            allowed_addresses=tuple(data["allowed_addresses"].split()),
            criticalities=tuple(data["criticalities"]),
        )


class KeyForm(TermsForm):
    """A new key."""

    scopes = forms.MultipleChoiceField(
        label=gettext_lazy("May do"),
        choices=[
            (KeyScope.INFERENCE.value, gettext_lazy("Inference: call endpoints through the gateway")),
            (KeyScope.MANAGE.value, gettext_lazy("Manage: use the REST API of this tenant")),
        ],
        widget=forms.CheckboxSelectMultiple,
        initial=[KeyScope.INFERENCE.value],
        error_messages={"required": gettext_lazy("Choose at least one.")},
    )


class EditForm(TermsForm):
    """Changes of a key; its expiry stays unless another is chosen."""

    expires = forms.ChoiceField(
        label=gettext_lazy("Expires"), choices=((KEEP, gettext_lazy("as it is")), *_EXPIRIES), required=False
    )


class RotateForm(forms.Form):
    """How long the old secret is still accepted."""

    overlap = forms.ChoiceField(label=gettext_lazy("The old key is accepted"), choices=_OVERLAPS, initial="86400")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        styled(self)


@dataclasses.dataclass(frozen=True)
class Row:
    """A key in the list: ``known`` says which gateways refuse it (revoked ones only)."""

    key: ApiKey
    state: str
    use: limits.Use
    known: revocation.Acknowledgement | None

    @property
    def overlaps(self) -> bool:
        """The secret before the last rotation is still accepted."""
        return self.key.revoked_at is None and overlaps(self.key)


def overlaps(key: ApiKey) -> bool:
    """Whether the secret before the last rotation still has time."""
    return key.previous_expires_at is not None and key.previous_expires_at > clock.now()


def state_of(key: ApiKey) -> str:
    """One word for the key: active, expires_soon, expired or revoked."""
    now = clock.now()
    if key.revoked_at:
        return "revoked"
    if key.expires_at and key.expires_at <= now:
        return "expired"
    return "expires_soon" if key.expires_at and key.expires_at - now < SOON else "active"


@tenant_page
def index(request: HttpRequest, here: Here) -> HttpResponse:
    """The list."""
    wanted, shown = request.GET.get("q", "").strip(), request.GET.get("state", "")
    keys = selectors.keys_of(here.tenant)
    total = keys.count()
    if wanted:
        keys = keys.filter(Q(name__icontains=wanted) | Q(last4__iexact=wanted[-4:]))
    if shown in (states := _states()):
        keys = keys.filter(states[shown])
    found = keyset.page(request, keys, PER_PAGE, {"q": wanted, "state": shown})
    context = {
        "keyset": found, "rows": _with_use(here, [(key, state_of(key)) for key in found.rows]), "total": total,
        "wanted": wanted, "shown": shown, "may_change": here.can(Permission.MANAGE_KEYS),
        "is_filtered": bool(wanted or shown),
    }  # fmt: skip
    return render(request, "console/pages/keys.html", context)


def _states() -> dict[str, Q]:
    """What can be shown alone, as :func:`state_of` tells them apart; those that expire soon are active."""
    now = clock.now()
    expired = Q(revoked_at=None, expires_at__lte=now)
    return {
        "active": Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=now)),
        "expires_soon": Q(revoked_at=None, expires_at__gt=now, expires_at__lt=now + SOON),
        "expired": expired,
        "revoked": Q(revoked_at__isnull=False),
    }


def _with_use(here: Here, rows: list[tuple[ApiKey, str]]) -> list[Row]:
    uses = limits.of_keys(here.tenant, [key for key, _state in rows])
    known = revocation.of_keys([key for key, _state in rows])
    return [Row(key, state, uses[key.id], known.get(key.id)) for key, state in rows]


@never_cache
@tenant_page(get=Permission.MANAGE_KEYS, post=Permission.MANAGE_KEYS)
@before_secrets
def create(request: HttpRequest, here: Here) -> HttpResponse:
    """The dialog, and the new key's text in the answer to its POST."""
    names = callable_names(here)
    form = KeyForm(request.POST if request.method == "POST" else None, endpoints=names)
    if request.method == "POST" and form.is_valid():
        try:
            asked = form.terms()
            key, text = services.create_api_key(
                actor=here.actor,
                tenant=here.tenant,
                name=form.cleaned_data["name"],
                scopes=form.cleaned_data["scopes"],
                **{field.name: getattr(asked, field.name) for field in dataclasses.fields(asked)},
            )
        except errors.PlatformError as exc:
            _tell(form, exc)
        else:
            return _secret(request, key, text, names)
    status = 422 if request.method == "POST" else 200
    return render(request, "console/pages/key_form.html", {"form": form, "names": names}, status=status)


def _tell(form: forms.Form, exc: errors.PlatformError) -> None:
    field = exc.data.get("field")
    form.add_error(field if field in form.fields else None, problems.describe(exc).text)


def _secret(request: HttpRequest, key: ApiKey, text: str, names: list[str], rotated: bool = False) -> HttpResponse:
    model = (key.allowed_endpoints or names or ["my-endpoint"])[0]
    context = {
        "key": key, "secret": text, "samples": samples.chat(settings.GATEWAY_URL, model), "rotated": rotated,
    }  # fmt: skip
    return render(request, "console/pages/key_created.html", context)


@tenant_page(get=Permission.MANAGE_KEYS, post=Permission.MANAGE_KEYS)
def edit(request: HttpRequest, here: Here, key_id: uuid.UUID) -> HttpResponse:
    """The dialog with what the key may, and the act; the secret stays."""
    key = access.access_key(here.actor, here.tenant, key_id, Permission.MANAGE_KEYS)
    names = list(dict.fromkeys([*callable_names(here), *key.allowed_endpoints]))
    initial = {
        **initial_limits(key), "name": key.name, "expires": KEEP, "allowed_endpoints": key.allowed_endpoints,
        "allowed_addresses": "\n".join(key.allowed_addresses), "criticalities": key.criticalities,
    }  # fmt: skip
    form = EditForm(request.POST if request.method == "POST" else None, initial=initial, endpoints=names)
    if request.method == "POST" and form.is_valid():
        try:
            services.set_key_terms(
                actor=here.actor,
                tenant=here.tenant,
                key=key,
                name=form.cleaned_data["name"],
                asked=form.terms(key),
            )
        except errors.PlatformError as exc:
            _tell(form, exc)
        else:
            return done(request, _("Key %(name)s is changed.") % {"name": form.cleaned_data["name"]}, _list(here))
    context = {"form": form, "names": names, "key": key}
    return render(request, "console/pages/key_form.html", context, status=422 if request.method == "POST" else 200)


@never_cache
@tenant_page(get=Permission.MANAGE_KEYS, post=Permission.MANAGE_KEYS)
@before_secrets
def rotate(request: HttpRequest, here: Here, key_id: uuid.UUID) -> HttpResponse:
    """The dialog, and the new text in the answer to its POST."""
    key = access.access_key(here.actor, here.tenant, key_id, Permission.MANAGE_KEYS)
    form = RotateForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        overlap = datetime.timedelta(seconds=int(form.cleaned_data["overlap"]))
        try:
            row, text = services.rotate_api_key(actor=here.actor, tenant=here.tenant, key=key, overlap=overlap)
        except errors.PlatformError as exc:
            return refused(request, exc, _list(here))
        return _secret(request, row, text, callable_names(here), rotated=True)
    status = 422 if request.method == "POST" else 200
    context = {"form": form, "key": key, "overlaps": overlaps(key)}
    return render(request, "console/pages/key_rotate.html", context, status=status)


def _list(here: Here) -> str:
    return reverse("console:keys", kwargs={"slug": here.tenant.slug})


@tenant_page(get=Permission.MANAGE_KEYS, post=Permission.MANAGE_KEYS)
def revoke(request: HttpRequest, here: Here, key_id: uuid.UUID) -> HttpResponse:
    """The dialog that says what revoking means, and the act; the answer says which gateways refuse it already."""
    key = access.access_key(here.actor, here.tenant, key_id, Permission.MANAGE_KEYS)
    if request.method != "POST":
        return render(request, "console/pages/key_revoke.html", {"key": key})
    try:
        _key, known = revocation.revoke(actor=here.actor, tenant=here.tenant, key=key)
    except errors.PlatformError as exc:
        return refused(request, exc, _list(here))
    return done(request, _said(key.name, known), _list(here))


def _said(name: str, known: revocation.Acknowledgement) -> str:
    values = {
        "name": name,
        "done": len(known.by),
        "total": known.total,
        "waiting": ", ".join(known.waiting),
        "silent": ", ".join(known.silent),
    }
    if known.waiting:
        text = _("Key %(name)s is revoked. %(done)s of %(total)s gateways refuse it; not yet: %(waiting)s.") % values
    elif known.total:
        text = (
            ngettext(
                "Key %(name)s is revoked. The gateway refuses it.",
                "Key %(name)s is revoked. All %(total)s gateways refuse it.",
                known.total,
            )
            % values
        )
    else:
        text = _("Key %(name)s is revoked. No gateway is running.") % values
    silent = _("Not heard of lately: %(silent)s.") % values if known.silent else ""
    final = _("A revoked key cannot be brought back.")
    return " ".join(part for part in (text, silent, final) if part)

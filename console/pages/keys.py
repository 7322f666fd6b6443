"""API keys: list, create (the text is shown once, in the answer to the creating request and nowhere else), revoke."""

import datetime
import uuid

from django import forms
from django.conf import settings
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache

from console import problems
from console.forms import NumberField, styled
from console.presenters import samples
from console.queries import callable_names
from console.web import Here, done, refused, tenant_page
from kernel import clock, errors
from tenants import access, selectors, services
from tenants.models import ApiKey, KeyScope
from tenants.roles import Permission

SOON = datetime.timedelta(days=7)
PER_PAGE = 50
_EXPIRIES = (
    ("", gettext_lazy("never")),
    ("1", gettext_lazy("in 1 day")),
    ("30", gettext_lazy("in 30 days")),
    ("90", gettext_lazy("in 90 days")),
    ("365", gettext_lazy("in 1 year")),
)


class KeyForm(forms.Form):
    """What a new key is for and what it may."""

    name = forms.CharField(label=gettext_lazy("Name"), max_length=120, help_text=gettext_lazy("What uses this key."))
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
    expires = forms.ChoiceField(label=gettext_lazy("Expires"), choices=_EXPIRIES, required=False, initial="90")
    endpoints = forms.MultipleChoiceField(
        label=gettext_lazy("Endpoints"), required=False, help_text=gettext_lazy("None chosen means all.")
    )
    requests_per_minute = NumberField(label=gettext_lazy("Requests"), required=False, min_value=1)
    tokens_per_minute = NumberField(label=gettext_lazy("Tokens"), required=False, min_value=1)
    max_parallel_requests = NumberField(label=gettext_lazy("At once"), required=False, min_value=1)

    def __init__(self, *args: object, endpoints: list[str], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.fields["endpoints"].choices = [(name, name) for name in endpoints]  # type: ignore[attr-defined]
        styled(self)


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
    rows = [(key, state_of(key)) for key in selectors.keys_of(here.tenant)]
    total = len(rows)
    if wanted:
        rows = [row for row in rows if wanted.lower() in row[0].name.lower() or wanted in row[0].masked]
    if shown:
        rows = [row for row in rows if row[1] == shown or (shown == "active" and row[1] == "expires_soon")]
    page = Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "page": page, "total": total, "wanted": wanted, "shown": shown,
        "may_change": here.can(Permission.MANAGE_KEYS), "is_filtered": bool(wanted or shown),
    }  # fmt: skip
    return render(request, "console/pages/keys.html", context)


@never_cache
@tenant_page(get=Permission.MANAGE_KEYS, post=Permission.MANAGE_KEYS)
def create(request: HttpRequest, here: Here) -> HttpResponse:
    """The dialog, and the new key's text in the answer to its POST."""
    names = callable_names(here)
    form = KeyForm(_posted(request), endpoints=names)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        days = int(data["expires"] or 0)
        try:
            key, text = services.create_api_key(
                actor=here.actor,
                tenant=here.tenant,
                name=data["name"],
                scopes=data["scopes"],
                expires_at=clock.now() + datetime.timedelta(days=days) if days else None,
                allowed_endpoints=data["endpoints"],
                requests_per_minute=data["requests_per_minute"],
                tokens_per_minute=data["tokens_per_minute"],
                max_parallel_requests=data["max_parallel_requests"],
            )
        except errors.PlatformError as exc:
            form.add_error(
                exc.data.get("field") if exc.data.get("field") in form.fields else None, problems.describe(exc).text
            )
        else:
            model = (data["endpoints"] or names or ["my-endpoint"])[0]
            context = {"key": key, "secret": text, "samples": samples.chat(settings.GATEWAY_URL, model)}
            return render(request, "console/pages/key_created.html", context)
    status = 422 if request.method == "POST" else 200
    return render(request, "console/pages/key_form.html", {"form": form, "names": names}, status=status)


def _posted(request: HttpRequest) -> QueryDict | None:
    """The form's data; the choice "all" of the endpoints is an empty word and stands for none."""
    if request.method != "POST":
        return None
    data = request.POST.copy()
    data.setlist("endpoints", [name for name in data.getlist("endpoints") if name])
    return data


@tenant_page(get=Permission.MANAGE_KEYS, post=Permission.MANAGE_KEYS)
def revoke(request: HttpRequest, here: Here, key_id: uuid.UUID) -> HttpResponse:
    """The dialog that says what revoking means, and the act."""
    key = access.access_key(here.actor, here.tenant, key_id, Permission.MANAGE_KEYS)
    back = reverse("console:keys", kwargs={"slug": here.tenant.slug})
    if request.method != "POST":
        return render(request, "console/pages/key_revoke.html", {"key": key})
    try:
        services.revoke_api_key(actor=here.actor, tenant=here.tenant, key=key)
    except errors.PlatformError as exc:
        return refused(request, exc, back)
    return done(request, _("Key %(name)s is revoked. Gateways refuse it within 2 s.") % {"name": key.name}, back)

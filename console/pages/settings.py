"""Settings: what the tenant is, and what belongs to the person (name, language, theme, tokens)."""

import uuid

from django import forms
from django.conf import settings as conf
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache

from console import preferences, sessions
from console.forms import styled
from console.freshness import before_secrets
from console.presenters.isolation import REQUIRED
from console.web import Here, done, refused, signed_in, tenant_page
from fleet import policy
from kernel import clock, errors
from kernel.actors import Actor
from metering import deviceprices, limits, prices
from quotas import selectors as quotas
from quotas.amount import Kind
from serving.selectors import callable_endpoints
from tenants import access, second_factor, services
from tenants.models import ExternalIdentity, User, UserToken
from tenants.roles import Permission


class TokenForm(forms.Form):
    """A name for a token."""

    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=120, help_text=gettext_lazy("Where this token is used.")
    )

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        styled(self)


@tenant_page
def tenant(request: HttpRequest, here: Here) -> HttpResponse:
    """The tenant's facts, its limits with what is used beside them, and what it pays."""
    charged, hourly = prices.current(), deviceprices.book().at(clock.now())
    context = {
        "use": limits.of_tenant(here.tenant),
        "prices": [(row, charged.of(row.endpoint.id)) for row in callable_endpoints(here.tenant)],
        "quota": quotas.lines_of(here.tenant),
        "kinds": {kind.name: kind for kind in Kind},  # a template would call the class
        "device_prices": [(name, hourly.of(name)) for name in deviceprices.products()],
        "policy": policy.policy_of(here.tenant),
        "requirements": list(REQUIRED.items()),
        "may_manage": here.can(Permission.MANAGE_TENANT),
    }
    return render(request, "console/pages/settings.html", context)


@tenant_page(post=Permission.MANAGE_TENANT)
def isolate(request: HttpRequest, here: Here) -> HttpResponse:
    """Require an isolation of every replica of the tenant; asked by GET it changes nothing and leads to the form."""
    back = reverse("console:settings", kwargs={"slug": here.tenant.slug})
    if request.method != "POST":
        return HttpResponseRedirect(back)
    try:
        policy.set_policy(actor=here.actor, tenant=here.tenant, least=request.POST.get("isolation", ""))
    except errors.PlatformError as exc:
        return refused(request, exc, back)
    return done(request, _("Replicas that are placed from now on are kept apart like this."), back)


@signed_in
def account(request: HttpRequest, actor: Actor) -> HttpResponse:
    """The person's own settings; the sidebar leads back to their tenants."""
    tenants = access.tenants_of(actor)
    user = _user(request)
    context = {
        "tokens": UserToken.objects.filter(user=user, revoked_at=None, expires_at__gt=clock.now()),
        "tenants": [(one, actor.role_in(one.id)) for one in tenants],
        "my_tenants": tenants,
        "actor": actor,
        "chosen_theme": preferences.theme_of(request),
        "sessions": sessions.of_user(user, request),
        "has_factor": second_factor.is_enrolled(user),
        "factor_wanted": second_factor.is_required_of(user),
        "codes_left": second_factor.codes_left(user),
        "has_password": user.has_usable_password(),
        "identities": _companies(user),
    }
    return render(request, "console/pages/account.html", context)


def _companies(user: User) -> list[str]:
    """Names of the companies whose sign-in leads to this account."""
    issuers = set(ExternalIdentity.objects.filter(user=user).values_list("issuer", flat=True))
    return [one.name for one in conf.OPENID_PROVIDERS if one.issuer in issuers]


@never_cache
@signed_in
@before_secrets
def create_token(request: HttpRequest, actor: Actor) -> HttpResponse:
    """The dialog, and the new token's text in the answer to its POST."""
    form = TokenForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        token, text = services.create_user_token(actor=actor, user=_user(request), name=form.cleaned_data["name"])
        return render(request, "console/pages/token_created.html", {"token": token, "secret": text})
    status = 422 if request.method == "POST" else 200
    return render(request, "console/pages/token_form.html", {"form": form}, status=status)


@signed_in
def revoke_token(request: HttpRequest, actor: Actor, token_id: uuid.UUID) -> HttpResponse:
    """Refuse the token from now on."""
    token = UserToken.objects.filter(id=token_id, user=_user(request), revoked_at=None).first()
    if token is None or request.method != "POST":
        raise errors.NotFound("There is no such token.", code="token_not_found")
    services.revoke_user_token(actor=actor, token=token)
    return done(request, _("The token %(name)s is revoked.") % {"name": token.name}, reverse("console:account"))


@signed_in
def start(request: HttpRequest, actor: Actor) -> HttpResponse:
    """``/``: the first tenant of the visitor, or the platform."""
    tenants = access.tenants_of(actor)
    own = [one for one in tenants if actor.role_in(one.id)]
    if own:
        return redirect("console:home", slug=own[0].slug)
    if actor.is_platform_admin:
        return redirect("console:platform")
    if tenants:
        return HttpResponseRedirect(reverse("console:home", kwargs={"slug": tenants[0].slug}))
    return render(request, "console/pages/nowhere.html")


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user

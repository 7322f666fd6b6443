"""The company's sign-in: to the provider and back. What is kept for the way back lies in the session, for ten minutes.

Signing in goes through the same stages as with a password, so an authenticator app that is set up is asked for.
"""

import hmac
from typing import Any, Final

from allauth.account.internal.flows.login import perform_login, record_authentication
from allauth.account.models import Login
from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from console import problems
from console.pages.security import safe_next
from kernel import clock, errors
from tenants import freshness, identity, pacing
from tenants.models import User
from tenants.openid import persons, protocol, tokens
from tenants.openid.protocol import SignInRefused
from tenants.openid.providers import Provider

_FLOWS: Final = "openid_flows"
_MAX_FLOWS: Final = 5
_FLOW_SECONDS: Final = 600


@never_cache
@require_GET
def start(request: HttpRequest, provider_id: str) -> HttpResponse:
    """To the provider. Of somebody who is signed in, it asks for a new proof there."""
    try:
        pacing.take(pacing.LINK_FROM, pacing.network_of(identity.address_of(request.META)))
        provider = persons.provider_by_id(settings.OPENID_PROVIDERS, provider_id)
        confirming = request.user.is_authenticated
        to, flow = protocol.start(provider, redirect_uri=_callback(provider), fresh=confirming)
    except errors.PlatformError as exc:
        return _problem(request, exc)
    kept = {
        **flow, "provider": provider.id, "next": safe_next(request), "at": clock.now().timestamp(),
        "confirms": str(request.user.pk) if confirming else "",
    }  # fmt: skip
    request.session[_FLOWS] = [*request.session.get(_FLOWS, [])[-(_MAX_FLOWS - 1) :], kept]
    return HttpResponseRedirect(to)


@never_cache
@require_GET
def callback(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Back from the provider."""
    try:
        provider = persons.provider_by_id(settings.OPENID_PROVIDERS, provider_id)
        flow = _taken(request, provider)
        claims = _claims(request, provider, flow)
        if flow["confirms"]:
            return _confirmed(request, provider, claims, flow)
        user = persons.person_of(
            provider, claims, address=identity.address_of(request.META), request_id=getattr(request, "request_id", "")
        )
    except errors.PlatformError as exc:
        return _problem(request, exc)
    record_authentication(request, user, method="openid", provider=provider.id)
    request.session.set_expiry(0)  # until the browser closes; the company decides about longer
    response: HttpResponse = perform_login(request, Login(user=user, email=user.email, redirect_url=flow["next"]))
    return response


def _taken(request: HttpRequest, provider: Provider) -> dict[str, Any]:
    """What was kept under the answer's ``state``; it is good for one answer."""
    state = request.GET.get("state", "")
    flows: list[dict[str, Any]] = list(request.session.get(_FLOWS, []))
    found = next((one for one in flows if hmac.compare_digest(one["state"].encode(), state.encode())), None)
    if found is None or found["provider"] != provider.id:
        raise SignInRefused("This answer belongs to no sign-in of this browser. Begin again.", code="openid_state")
    request.session[_FLOWS] = [one for one in flows if one is not found]
    if clock.now().timestamp() - float(found["at"]) > _FLOW_SECONDS:
        raise SignInRefused("The sign-in took longer than ten minutes. Begin again.", code="openid_late")
    return found


def _claims(request: HttpRequest, provider: Provider, flow: dict[str, Any]) -> dict[str, Any]:
    issuer = request.GET.get("iss")
    if issuer is not None and issuer.rstrip("/") != provider.issuer:  # RFC 9207: an answer of somebody else
        raise SignInRefused("The answer comes from another provider.", code="openid_state")
    code = request.GET.get("code", "")
    if request.GET.get("error") or not 0 < len(code) <= 4096:
        raise SignInRefused("Your company's sign-in was cancelled or refused there.", code="openid_cancelled")
    return protocol.finish(provider, code=code, flow=flow, redirect_uri=_callback(provider))


def _confirmed(request: HttpRequest, provider: Provider, claims: dict[str, Any], flow: dict[str, Any]) -> HttpResponse:
    user = request.user
    if not isinstance(user, User) or str(user.pk) != flow["confirms"]:
        raise SignInRefused("You are signed in as somebody else now. Begin again.", code="openid_state")
    if not persons.subject_is(provider, claims, user):
        raise SignInRefused("That is another person than the one who is signed in here.", code="openid_other_subject")
    proved = tokens.proved_at(claims)
    if proved is None or clock.now().timestamp() - proved > freshness.RECENT_SECONDS:
        raise SignInRefused("Your company's sign-in did not ask you again just now.", code="openid_not_fresh")
    record_authentication(request, user, method="openid", provider=provider.id, reauthenticated=True)
    return HttpResponseRedirect(flow["next"])


def _callback(provider: Provider) -> str:
    return f"{settings.PUBLIC_URL}{reverse('openid_callback', kwargs={'provider_id': provider.id})}"


def _problem(request: HttpRequest, exc: errors.PlatformError) -> HttpResponse:
    context = {"said": problems.describe(exc), "code": exc.code, "request_id": getattr(request, "request_id", "")}
    response = render(request, "account/openid_problem.html", context, status=exc.status)
    if wait := exc.data.get("retry_after"):
        response["Retry-After"] = str(wait)
    return response

"""Signing in and what guards it: confirmation before secrets, second factor, sessions, forgotten passwords."""

from typing import Any

from allauth.account.internal import flows
from allauth.account.internal.flows.login import record_authentication
from allauth.account.views import LoginView, PasswordResetView
from allauth.mfa.totp.views import ActivateTOTPView
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache

from console import problems, sessions
from console.freshness import choices_of
from console.presenters import codes
from console.web import done, is_htmx, signed_in
from kernel import errors
from kernel.actors import Actor
from tenants import identity, mail, second_factor, sign_in
from tenants.models import User


class SignIn(LoginView):  # type: ignore[misc]
    """The password form, and the doors of companies beside it."""

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """What the template offers."""
        beside = {"providers": settings.OPENID_PROVIDERS, "next": safe_next(self.request, "")}
        return {**super().get_context_data(**kwargs), **beside}


class ForgottenPassword(PasswordResetView):  # type: ignore[misc]
    """By mail where there is mail; else the page says whom to ask."""

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """The form."""
        return super().get(request, *args, **kwargs) if mail.is_on() else _no_mail(request)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """The act."""
        return super().post(request, *args, **kwargs) if mail.is_on() else _no_mail(request)


def _no_mail(request: HttpRequest) -> HttpResponse:
    return render(request, "account/password_reset_no_mail.html")


class Enrol(ActivateTOTPView):  # type: ignore[misc]
    """Setting up an authenticator app."""

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """The QR code as shapes of ours instead of an image."""
        given: dict[str, Any] = super().get_context_data(**kwargs)
        return {**given, "qr": codes.qr(given["totp_url"]), "secret": codes.grouped(given["form"].secret)}


def safe_next(request: HttpRequest, otherwise: str = "/") -> str:
    """The address to go on to, if it is one of ours."""
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    here = {request.get_host()}
    if wanted.startswith("/") and url_has_allowed_host_and_scheme(wanted, here, require_https=request.is_secure()):
        return wanted
    return otherwise


@never_cache
@login_required
def confirm(request: HttpRequest) -> HttpResponse:
    """Who is there? Asked before secrets; then the wanted page, or the wanted dialog."""
    context = {**choices_of(request), "next": safe_next(request)}
    status = 200
    if request.method == "POST":
        try:
            _prove(request, _user(request))
        except errors.PlatformError as exc:
            status = 429 if exc.status == 429 else 422
            context["error"] = problems.describe(exc).text
            context["by_code"] = "code" in request.POST
        else:
            if is_htmx(request):
                return render(request, "account/confirm_done.html", context)
            resumed: HttpResponse | None = flows.reauthentication.resume_request(request)
            return resumed or HttpResponseRedirect(str(context["next"]))
    template = "account/confirm_dialog.html" if is_htmx(request) else "account/confirm.html"
    return render(request, template, context, status=status)


def _prove(request: HttpRequest, user: User) -> None:
    if code := request.POST.get("code", "").strip():
        second_factor.check_code(user, code[:64])
        record_authentication(request, user, method="mfa", reauthenticated=True)
        return
    address = identity.address_of(request.META)
    sign_in.begin(user.email, address)
    if not user.check_password(request.POST.get("password", "")[:256]):
        raise errors.Unauthenticated("The password is wrong.", code="wrong_password")
    sign_in.succeeded(user.email, address)
    record_authentication(request, user, method="password", reauthenticated=True)


@login_required
def second_factor_needed(request: HttpRequest) -> HttpResponse:
    """What somebody sees who must have a second factor and has none."""
    if second_factor.is_enrolled(_user(request)) or not second_factor.is_required_of(_user(request)):
        return redirect("/")
    return render(request, "account/second_factor_needed.html")


@signed_in
def end_session(request: HttpRequest, actor: Actor, session_id: int) -> HttpResponse:
    """Sign out on one device."""
    if request.method != "POST" or not sessions.end(actor=actor, user=_user(request), session_id=session_id):
        raise errors.NotFound("There is no such session.", code="session_not_found")
    return done(request, _("That device is signed out."), reverse("console:account"))


@signed_in
def end_other_sessions(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Sign out on every other device."""
    if request.method != "POST":
        raise errors.InvalidInput("This page only answers POST.", code="method_not_allowed")
    count = sessions.end_others(actor=actor, user=_user(request), request=request)
    text = ngettext("%(count)s other device is signed out.", "%(count)s other devices are signed out.", count)
    return done(request, text % {"count": count}, reverse("console:account"))


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user

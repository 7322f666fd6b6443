"""Sign-in as allauth does it, with our rules.

Nobody signs up alone: accounts are made by invitations. Failures are paced by ``tenants.sign_in``. One page of ours
(``pages.security.confirm``) asks who is there before secrets, also before what allauth guards. Secrets of factors
are encrypted at rest. Links in mails begin with the platform's own address, whatever Host a request named.
"""

import base64
import functools
import hashlib
import hmac
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core import context
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.mfa.adapter import DefaultMFAAdapter
from cryptography.fernet import Fernet
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _

from console import preferences, web
from kernel import errors
from tenants import freshness, identity, mail, second_factor, sign_in
from tenants.errors import TooManyAttempts
from tenants.models import User


def too_many(request: HttpRequest, retry_after: int = 60) -> HttpResponse:
    """429 that says when to come back."""
    minutes = -(-retry_after // 60)
    response = render(request, "429.html", {"minutes": minutes}, status=429)
    response["Retry-After"] = str(retry_after)
    return response


class Adapter(DefaultAccountAdapter):  # type: ignore[misc]
    """Accounts are made by members with the right to do so."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Never."""
        return False

    def add_message(self, *args: Any, **kwargs: Any) -> None:
        """No "successfully signed in": the page itself says it."""

    def get_client_ip(self, request: HttpRequest) -> str:
        """The peer as the server saw it; the ASGI server resolves trusted proxies, headers of callers do not count."""
        return identity.address_of(request.META) or "::"

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        """Count the try before the password is looked at."""
        try:
            sign_in.begin(str(credentials.get("email", "")), self.get_client_ip(request))
        except TooManyAttempts as exc:
            raise ImmediateHttpResponse(too_many(request, int(exc.data["retry_after"]))) from None
        except errors.Unavailable as exc:
            raise ImmediateHttpResponse(web.problem(request, exc)) from None

    def authenticate(self, request: HttpRequest, **credentials: Any) -> User | None:
        """A right password is no failure."""
        user: User | None = super().authenticate(request, **credentials)
        if user is not None:
            sign_in.succeeded(str(credentials.get("email", "")), self.get_client_ip(request))
        return user

    def is_reauthentication_required(self, *, app: str, **kwargs: Any) -> bool:
        """By the age of the last proof, sign-in included."""
        within = freshness.FORM_SECONDS if context.request.method == "POST" else freshness.RECENT_SECONDS
        return not freshness.is_recent(context.request, within)

    def get_reauthentication_methods(self, user: Any) -> list[dict[str, str]]:
        """One page of ours, which offers what the person has."""
        if not user.is_authenticated:
            return []
        return [{"id": "confirm", "description": _("Confirm that it is you"), "url": reverse("account_confirm")}]

    def get_reset_password_from_key_url(self, key: str) -> str:
        """Under the platform's own address."""
        uid, _dash, token = key.partition("-")
        path = reverse("account_reset_password_from_key", kwargs={"uidb36": uid, "key": token})
        return f"{settings.PUBLIC_URL}{path}"

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        """By our mail, which may be off, and whose failure must not show who has an account."""
        host = settings.PUBLIC_URL.partition("://")[2]
        given = {"email": email, "current_site": {"name": "Millpond", "domain": host}, **context}
        mail.send(self.render_mail(template_prefix, email, given))

    def post_login(self, request: HttpRequest, user: User, **kwargs: Any) -> HttpResponse:
        """Bring the person's language and theme to this browser."""
        response: HttpResponse = super().post_login(request, user, **kwargs)
        if user.language in dict(settings.LANGUAGES):
            preferences.keep(response, settings.LANGUAGE_COOKIE_NAME, user.language)
        if user.theme in preferences.THEMES:
            preferences.keep(response, preferences.THEME_COOKIE, user.theme)
        return response


class FactorAdapter(DefaultMFAAdapter):  # type: ignore[misc]
    """Second factors: encrypted under a key of the installation's pepper; kept where the platform wants one."""

    def encrypt(self, text: str) -> str:
        """For the database."""
        return _cipher().encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        """Back from the database."""
        return _cipher().decrypt(encrypted_text.encode()).decode()

    def can_delete_authenticator(self, authenticator: Any) -> bool:
        """Not what the platform wants of this person."""
        return not second_factor.is_required_of(authenticator.user)


@functools.cache
def _cipher() -> Fernet:
    key = hmac.new(settings.KEY_PEPPER, b"second factors", hashlib.sha256).digest()
    return Fernet(base64.urlsafe_b64encode(key))

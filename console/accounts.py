"""Sign-in as allauth does it, with our rules: nobody signs up by themselves, preferences follow the person."""

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from django.conf import settings
from django.http import HttpRequest, HttpResponse

from console import preferences
from tenants.models import User


class Adapter(DefaultAccountAdapter):  # type: ignore[misc]
    """Accounts are made by members with the right to do so."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Never."""
        return False

    def add_message(self, *args: Any, **kwargs: Any) -> None:
        """No "successfully signed in": the page itself says it."""

    def post_login(self, request: HttpRequest, user: User, **kwargs: Any) -> HttpResponse:
        """Bring the person's language and theme to this browser."""
        response: HttpResponse = super().post_login(request, user, **kwargs)
        if user.language in dict(settings.LANGUAGES):
            preferences.keep(response, settings.LANGUAGE_COOKIE_NAME, user.language)
        if user.theme in preferences.THEMES:
            preferences.keep(response, preferences.THEME_COOKIE, user.theme)
        return response

"""Language and theme: cookies, so that the first paint is right, and the person's row, so that they travel."""

from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from tenants.models import User

THEME_COOKIE: Final = "millpond_theme"
THEMES: Final = ("light", "dark", "system")
_YEAR_SECONDS: Final = 365 * 24 * 3600


def theme_of(request: HttpRequest) -> str:
    """The theme of this browser."""
    theme = request.COOKIES.get(THEME_COOKIE, "")
    return theme if theme in THEMES else "system"


def keep(response: HttpResponse, name: str, value: str) -> None:
    """Set a preference cookie for a year. The page's script may read it."""
    response.set_cookie(name, value, max_age=_YEAR_SECONDS, samesite="Lax", secure=settings.SESSION_COOKIE_SECURE)


@require_POST
def choose(request: HttpRequest) -> HttpResponse:
    """Take ``language`` and/or ``theme``; go back to the page in ``next``, with its query."""
    back = request.POST.get("next", "/")
    if not url_has_allowed_host_and_scheme(back, {request.get_host()}, require_https=request.is_secure()):
        back = "/"
    response: HttpResponse = HttpResponse(status=204) if request.POST.get("quiet") else HttpResponseRedirect(back)
    changed: dict[str, str] = {}
    if (language := request.POST.get("language", "")) in dict(settings.LANGUAGES):
        keep(response, settings.LANGUAGE_COOKIE_NAME, language)
        changed["language"] = language
    if (theme := request.POST.get("theme", "")) in THEMES:
        keep(response, THEME_COOKIE, theme)
        changed["theme"] = theme
    if changed and isinstance(request.user, User):
        User.objects.filter(pk=request.user.pk).update(**changed)
    return response

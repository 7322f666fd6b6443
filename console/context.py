"""What every page needs around its own content: theme, sidebar, counts, the level of the place, words for scripts."""

import logging
from typing import Any

from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest
from django.utils.translation import get_language

from console import navigation, preferences, surroundings, words
from console.web import Here, Place, is_htmx
from tenants import access

#: Tenants that the switch offers; platform admins find the others on their page.
MAX_TENANTS = 30
logger = logging.getLogger(__name__)


def shell(request: HttpRequest) -> dict[str, Any]:
    """Context processor of all templates."""
    place: Place | None = getattr(request, "place", None)
    is_fragment = is_htmx(request) and getattr(request.htmx, "target", "") == "live"  # type: ignore[attr-defined]
    context: dict[str, Any] = {
        "theme": preferences.theme_of(request),
        "base": "console/fragment.html" if is_fragment else "console/shell.html",
        "languages": settings.LANGUAGES,
        "language": get_language(),
        "words": words.for_scripts(_section(request)),
        "here_url": request.get_full_path(),
        "gateway_url": settings.GATEWAY_URL,
        "currency": settings.CURRENCY,
    }
    if place is not None:
        context |= _around(place, _section(request))
    return context


def _section(request: HttpRequest) -> str:
    """The entry of the sidebar that a page belongs to: the first word of its address below the place."""
    match = request.resolver_match
    if match is None:
        return ""
    below = match.route.removeprefix("t/<slug:slug>/").removeprefix("platform/").split("/")[0]
    return {"devices": "gpus", "evaluation": "models"}.get(below, below)


def _around(place: Place, section: str) -> dict[str, Any]:
    context: dict[str, Any] = {"place": place, "tenant": place.tenant, "actor": place.actor}
    slug = place.tenant.slug if place.tenant else ""
    try:
        around = surroundings.of_tenant(place) if isinstance(place, Here) else surroundings.of_platform()
    except DatabaseError:  # boundary: a page that reports a broken database must still come out
        logger.exception("surroundings of a page failed")
        around = surroundings.Around({}, None, 0, 0)
    context["around"] = around
    context["nav"] = navigation.items(slug, section or ("home" if slug else "overview"), around.counts)
    mine = access.tenants_of(place.actor, MAX_TENANTS + 1)
    context["my_tenants"], context["more_tenants"] = mine[:MAX_TENANTS], len(mine) > MAX_TENANTS
    return context

"""Every route says who may call it."""

import pytest
from django.urls import URLPattern, URLResolver, get_resolver
from django.views.generic import RedirectView

from tenants.api.base import PlatformView, TenantView

WHO = {"public", "signed_in", "member", "platform_admin"}

#: Routes that are no REST of ours, with the reason why each is fine.
OUTSIDE_REST = {
    "healthz": "liveness for load balancers",
    "readyz": "readiness for load balancers",
    "api/schema": "the OpenAPI document",
    "api/docs": "the OpenAPI document for people",
}
#: Prefixes with an authentication of their own, tested in their rooms.
OWN_DOORS = ("internal/v1/",)
REST = "api/v1/"


def routes(patterns=None, prefix=""):
    for pattern in get_resolver().url_patterns if patterns is None else patterns:
        text = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from routes(pattern.url_patterns, text)
        else:
            assert isinstance(pattern, URLPattern)
            yield text, pattern.callback


def rest_views():
    return [
        (text, getattr(view, "view_class", getattr(view, "cls", None)))
        for text, view in routes()
        if text.startswith(REST)
    ]


def test_there_are_routes():
    assert len(rest_views()) > 30


@pytest.mark.parametrize(("route", "view"), rest_views(), ids=[text for text, _ in rest_views()])
def test_a_rest_route_is_a_platform_view_that_declares_who_may_call_it(route, view):
    assert view is not None, f"{route} is no class"
    assert issubclass(view, PlatformView)
    assert view.who in WHO
    if view.who == "public":
        assert not issubclass(view, TenantView)


@pytest.mark.parametrize(("route", "view"), rest_views(), ids=[text for text, _ in rest_views()])
def test_a_route_under_a_tenant_checks_membership_and_names_a_permission_per_writing_method(route, view):
    under_tenant = route.startswith(REST + "tenants/<slug:tenant>")
    assert issubclass(view, TenantView) == under_tenant
    if not under_tenant:
        return
    answered = {name.upper() for name in view.http_method_names if hasattr(view, name)}
    writing = answered - {"GET", "HEAD", "OPTIONS"}
    assert writing <= set(view.permissions), f"{view.__name__} leaves {writing - set(view.permissions)} to anybody"


def test_only_login_is_public():
    assert {route for route, view in rest_views() if view.who == "public"} == {REST + "login"}


def test_everything_else_is_on_the_list_behind_its_own_door_or_a_page():
    others = [text for text, _ in routes() if not text.startswith((REST, *OWN_DOORS)) and text not in OUTSIDE_REST]
    pages = [text for text in others if _is_page(text)]
    assert sorted(set(others) - set(pages)) == []


def _is_page(text):
    """Pages of the console and of signing in (the rooms that own them say who may see them), and plain redirects."""
    views = [view for route, view in routes() if route == text]
    ours = ("console.", "allauth.", "django.contrib.staticfiles", "django.views.i18n")
    return all(view.__module__.startswith(ours) or getattr(view, "view_class", None) is RedirectView for view in views)


def test_every_listed_exception_exists():
    assert set(OUTSIDE_REST) <= {text for text, _ in routes()}

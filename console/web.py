"""The frame of every view: who visits, where, what may be done there; and errors as pages.

``tenant_page`` and ``platform_page`` wrap a view: they find the actor, check the permission, open the tenant's scope
and turn every ``PlatformError`` into a page (or, for a request of htmx, into a toast).
"""

import dataclasses
import functools
import json
import zoneinfo
from collections.abc import Callable
from typing import Any, cast, overload

from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django_htmx.http import HttpResponseClientRedirect, trigger_client_event
from django_htmx.middleware import HtmxDetails

from console import problems, sessions
from kernel import errors, scope
from kernel.actors import Actor, Way
from tenants import access, identity
from tenants.errors import SecondFactorMissing
from tenants.models import Tenant
from tenants.roles import Permission

TIME_ZONE_COOKIE = "millpond_tz"
UNDO_TAG = "undo:"


class ConsoleRequest(HttpRequest):
    """What our middleware makes of a request (for the type checker)."""

    htmx: HtmxDetails
    request_id: str
    place: "Place"


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a visitor is: a tenant, or the platform above them (``tenant`` is ``None``)."""

    actor: Actor
    tenant: Tenant | None

    def can(self, permission: Permission) -> bool:
        """Whether the visitor may do ``permission`` here."""
        if self.tenant is None:
            return self.actor.is_platform_admin
        return access.can(self.actor, permission, self.tenant.id)

    @property
    def role(self) -> str:
        """The visitor's role name here, ``platform_admin`` for one who is no member."""
        if self.tenant is not None and (role := self.actor.role_in(self.tenant.id)):
            return role
        return "platform_admin"

    @property
    def live_path(self) -> str:
        """Path of the WebSocket that says when something changes here."""
        return f"/ws/t/{self.tenant.slug}/" if self.tenant else "/ws/platform/"


@dataclasses.dataclass(frozen=True)
class Here(Place):
    """A place that is a tenant."""

    tenant: Tenant


View = Callable[..., HttpResponse]


@overload
def tenant_page(view: View) -> View: ...


@overload
def tenant_page(*, get: Permission = ..., post: Permission | None = ...) -> Callable[[View], View]: ...


def tenant_page(
    view: View | None = None, *, get: Permission = Permission.VIEW, post: Permission | None = None
) -> View | Callable[[View], View]:
    """Wrap ``view(request, here, **kwargs)`` under ``/t/<slug>/``. Without ``post`` the page only reads."""

    def wrap(inner: View) -> View:
        @functools.wraps(inner)
        def outer(request: HttpRequest, slug: str, **kwargs: Any) -> HttpResponse:
            def work(actor: Actor) -> HttpResponse:
                needed = _needed(request, get, post)
                tenant = access.access_tenant(actor, slug, needed)
                here = Here(actor, tenant)
                cast(ConsoleRequest, request).place = here
                scope.enter(tenant.id)
                return inner(request, here, **kwargs)

            return _framed(request, work, slug=slug)

        return outer

    return wrap(view) if view is not None else wrap


def platform_page(view: View) -> View:
    """Wrap ``view(request, place, **kwargs)`` for platform admins; every tenant's rows are in view."""

    @functools.wraps(view)
    def outer(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        def work(actor: Actor) -> HttpResponse:
            access.require_platform_admin(actor)
            place = Place(actor, None)
            cast(ConsoleRequest, request).place = place
            with scope.all_tenants():
                return view(request, place, **kwargs)

        return _framed(request, work)

    return outer


def signed_in(view: View) -> View:
    """Wrap ``view(request, actor, **kwargs)`` for anybody who is signed in."""

    @functools.wraps(view)
    def outer(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        return _framed(request, lambda actor: view(request, actor, **kwargs))

    return outer


def _needed(request: HttpRequest, get: Permission, post: Permission | None) -> Permission:
    if request.method in ("GET", "HEAD"):
        return get
    if request.method != "POST" or post is None:
        raise errors.InvalidInput("This page only answers GET.", code="method_not_allowed")
    return post


def _framed(request: HttpRequest, work: Callable[[Actor], HttpResponse], slug: str = "") -> HttpResponse:
    with scope.isolated(), timezone.override(_zone(request)):
        try:
            actor = identity.actor_of_request(request, way=Way.CONSOLE)
            sessions.seen(request)
            return work(actor)
        except errors.Unauthenticated:
            return _to_login(request)
        except SecondFactorMissing:
            return _to_second_factor(request)
        except errors.PlatformError as exc:
            _place_for_error(request, slug)
            return problem(request, exc)


def _place_for_error(request: HttpRequest, slug: str) -> None:
    """A visitor who may look but not do still gets the tenant's shell around the refusal."""
    if hasattr(request, "place") or not slug:
        return
    try:
        actor = identity.actor_of_request(request, way=Way.CONSOLE)
        tenant = access.access_tenant(actor, slug)
    except errors.PlatformError:
        return
    cast(ConsoleRequest, request).place = Here(actor, tenant)
    scope.enter(tenant.id)


def _zone(request: HttpRequest) -> zoneinfo.ZoneInfo:
    """The browser's time zone as its cookie says; UTC for anything that is none."""
    name = request.COOKIES.get(TIME_ZONE_COOKIE, "")
    if name and len(name) < 64 and name in _zones():
        return zoneinfo.ZoneInfo(name)
    return zoneinfo.ZoneInfo("UTC")


@functools.cache
def _zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def _to_login(request: HttpRequest) -> HttpResponse:
    if is_htmx(request):
        return HttpResponseClientRedirect(redirect_to_login(request.META.get("HTTP_HX_CURRENT_URL_PATH", "/")).url)
    return redirect_to_login(request.get_full_path())


def _to_second_factor(request: HttpRequest) -> HttpResponse:
    to = reverse("account_second_factor_needed")
    return HttpResponseClientRedirect(to) if is_htmx(request) else HttpResponseRedirect(to)


def is_htmx(request: HttpRequest) -> bool:
    """Whether htmx asks (and wants a fragment)."""
    return bool(getattr(request, "htmx", False))


def problem(request: HttpRequest, exc: errors.PlatformError) -> HttpResponse:
    """An error as a page, or as a toast when htmx asked."""
    said = problems.describe(exc)
    request_id = getattr(request, "request_id", "")
    if is_htmx(request):
        response = HttpResponse(status=exc.status)
        detail = {"tone": "bad", "title": str(said.title), "text": said.text, "code": exc.code, "request": request_id}
        return trigger_client_event(response, "toast", detail)
    context = {"said": said, "code": exc.code, "status": exc.status, "request_id": request_id}
    return render(request, "console/pages/problem.html", context, status=exc.status)


@dataclasses.dataclass(frozen=True)
class Undo:
    """What takes a change back: a POST to one of our own addresses, checked and audited like any other."""

    to: str
    fields: dict[str, str] = dataclasses.field(default_factory=dict)


def done(request: HttpRequest, text: str, to: str, undo: Undo | None = None) -> HttpResponse:
    """After a change: a toast on the page ``to``, with a button that takes it back where ``undo`` says how."""
    # Messages keep text and tags; their store signs both, so the address is ours when it comes back.
    tags = UNDO_TAG + json.dumps(dataclasses.asdict(undo)) if undo else ""
    messages.success(request, text, extra_tags=tags)
    return HttpResponseClientRedirect(to) if is_htmx(request) else HttpResponseRedirect(to)


def came_from(request: HttpRequest, *pages: str) -> str:
    """The address the visitor's dialog was opened on when its path is one of ``pages``; else the first of them."""
    details = getattr(request, "htmx", None)
    here = (details.current_url_abs_path or "") if details else ""
    return here if here.split("?")[0] in pages[1:] else pages[0]


def refused(request: HttpRequest, exc: errors.PlatformError, to: str) -> HttpResponse:
    """After a refusal of a one-click act: a toast with the typed code on the page ``to``."""
    if is_htmx(request):
        return problem(request, exc)
    messages.error(request, f"{problems.describe(exc).text} ({exc.code})")
    return HttpResponseRedirect(to)

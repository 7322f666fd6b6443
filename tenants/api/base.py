"""The base views: every route declares who may call it.

``PlatformView`` knows its actor. ``TenantView`` also resolves ``{tenant}`` of the path, checks the permission that the
view declares for the method, and opens the tenant's scope for the time of the request.
"""

import json
from collections.abc import Callable
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponseBase
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response

from kernel import scope
from kernel.actors import Actor
from ledger import idempotency
from tenants import access, freshness
from tenants.api.authentication import Caller
from tenants.models import Tenant
from tenants.roles import Permission


class PlatformView(generics.GenericAPIView[Any]):
    """A route of ours: knows its actor, repeats POSTs safely under an ``Idempotency-Key``.

    ``who`` says who may call it: ``public``, ``signed_in``, ``member`` (with ``permissions``) or ``platform_admin``.
    """

    who: ClassVar[str] = "signed_in"
    idempotent: ClassVar[bool] = True

    @property
    def actor(self) -> Actor:
        """Who calls."""
        caller: object = self.request.user
        assert isinstance(caller, Caller)
        return caller.actor

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if self.who == "platform_admin":
            access.require_platform_admin(self.actor)

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        with scope.isolated():
            response = super().dispatch(request, *args, **kwargs)
            if isinstance(response, Response) and response.accepted_renderer is not None:
                response.render()  # serializers are lazy: render inside the scope
            return response

    def confirm_recent(self) -> None:
        """Before secrets: a session has to be proved recently; a token or key proves itself with every call.

        Raises:
            AuthenticationTooOld: confirm in the console first.
        """
        caller: object = self.request.user
        if self.request.auth is None and isinstance(caller, Caller) and caller.user is not None:
            freshness.require_recent(self.request._request, caller.user)

    def once(self, request: Request, work: Callable[[], Response]) -> Response:
        """Run ``work`` under the request's ``Idempotency-Key``, or plainly without one."""
        key = request.META.get("HTTP_IDEMPOTENCY_KEY", "")
        if not key:
            return work()
        return idempotency.run_once(
            owner=f"{self.actor.kind}:{self.actor.id}",
            route=f"{request.method} {request.path}",
            key=key,
            body=json.dumps(request.data, sort_keys=True, default=str).encode(),
            work=work,
        )


class TenantView(PlatformView):
    """A route under ``/api/v1/tenants/{tenant}/``. ``permissions`` names the permission per HTTP method."""

    who = "member"
    permissions: ClassVar[dict[str, Permission]] = {}
    tenant: Tenant

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        needed = self.permissions.get(
            str(request.method), Permission.VIEW if request.method in ("GET", "HEAD", "OPTIONS") else None
        )
        if needed is None:
            self.http_method_not_allowed(request)
            raise AssertionError(f"{type(self).__name__} declares no permission for {request.method}")
        self.tenant = access.access_tenant(self.actor, str(kwargs["tenant"]), needed)
        scope.enter(self.tenant.id)

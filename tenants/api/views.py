"""REST of users, tenants, members and audit events."""

import dataclasses
import uuid
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import throttling
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from kernel import errors
from kernel.actors import Way
from ledger.models import AuditEvent
from ledger.selectors import events_of_tenant
from tenants import access, identity, selectors, services, sign_in
from tenants.api import serializers as shapes
from tenants.api.authentication import BearerAuthentication
from tenants.api.base import PlatformView, TenantView
from tenants.api.limits import changes
from tenants.models import Member, Tenant, User, UserToken
from tenants.roles import Permission, Role
from tenants.terms import limits_of


class LoginThrottle(throttling.ScopedRateThrottle):
    """Ten tries a minute from one address (kept in the shared cache)."""

    scope_attr = "throttle_scope"
    THROTTLE_RATES = {"login": "10/min"}


class Login(PlatformView):
    """Trade e-mail and password (and the code of a second factor) for a token that acts as the user."""

    who = "public"
    authentication_classes = []
    permission_classes = [AllowAny]
    throttle_classes = [LoginThrottle]
    throttle_scope = "login"
    serializer_class = shapes.LoginIn

    @extend_schema(request=shapes.LoginIn, responses={201: shapes.LoginOut}, operation_id="login")
    def post(self, request: Request) -> Response:
        given = shapes.LoginIn(data=request.data)
        given.is_valid(raise_exception=True)
        address = identity.address_of(request.META)
        data = given.validated_data
        user = sign_in.check_password(data["email"], data["password"], data["code"], address)
        actor = identity.actor_of_user(
            user,
            way=identity.way_of(request.META.get("HTTP_USER_AGENT", ""), Way.API),
            address=address,
            request_id=getattr(request._request, "request_id", ""),
        )
        token, text = services.create_user_token(actor=actor, user=user, name=given.validated_data["name"])
        body = {"token": text, "expires_at": token.expires_at, "user": _user(user)}
        return Response(shapes.LoginOut(body).data, status=201)


def _user(user: User) -> dict[str, Any]:
    return {"id": user.id, "email": user.email, "name": user.name, "is_platform_admin": user.is_staff}


class Logout(PlatformView):
    """Revoke the token of this call."""

    serializer_class = None
    authentication_classes = [BearerAuthentication]

    @extend_schema(request=None, responses={204: None}, operation_id="logout")
    def post(self, request: Request) -> Response:
        text = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")[2].strip()
        token = UserToken.objects.filter(digest=services.digest_of(text)).first()
        if token is None:
            raise errors.InvalidInput("Only a user token can sign itself out; revoke an API key in its tenant.")
        services.revoke_user_token(actor=self.actor, token=token)
        return Response(status=204)


class Me(PlatformView):
    """Who the caller is, and where."""

    serializer_class = shapes.MeOut

    @extend_schema(responses=shapes.MeOut, operation_id="me")
    def get(self, request: Request) -> Response:
        actor = self.actor
        body = {
            "kind": actor.kind,
            "label": actor.label,
            "is_platform_admin": actor.is_platform_admin,
            "tenants": [
                {"slug": tenant.slug, "name": tenant.name, "role": actor.role_in(tenant.id)}
                for tenant in access.tenants_of(actor)
            ],
        }
        return Response(shapes.MeOut(body).data)


class Tenants(PlatformView):
    """Tenants that the caller may enter; platform admins make new ones."""

    serializer_class = shapes.TenantOut

    def get_queryset(self) -> QuerySet[Tenant]:
        return Tenant.objects.filter(id__in=[tenant.id for tenant in access.tenants_of(self.actor)])

    @extend_schema(responses=shapes.TenantOut(many=True), operation_id="tenants_list")
    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(self.get_queryset())
        return self.get_paginated_response(shapes.TenantOut(page, many=True).data)

    @extend_schema(request=shapes.TenantIn, responses={201: shapes.TenantOut}, operation_id="tenants_create")
    def post(self, request: Request) -> Response:
        access.require_platform_admin(self.actor)
        given = shapes.TenantIn(data=request.data)
        given.is_valid(raise_exception=True)
        owner = None
        if email := given.validated_data.get("owner_email"):
            owner = _user_by_email(email)

        def work() -> Response:
            tenant = services.create_tenant(
                actor=self.actor, slug=given.validated_data["slug"], name=given.validated_data["name"], owner=owner
            )
            return Response(shapes.TenantOut(tenant).data, status=201)

        return self.once(request, work)


def _user_by_email(email: str) -> User:
    user = User.objects.filter(email=email.lower(), is_active=True).first()
    if user is None:
        raise errors.InvalidInput(
            f"There is no user {email!r}; invite the address, and the account is made on acceptance.",
            code="unknown_user",
        )
    return user


class TenantDetail(TenantView):
    """One tenant."""

    serializer_class = shapes.TenantOut

    @extend_schema(responses=shapes.TenantOut, operation_id="tenants_retrieve")
    def get(self, request: Request, tenant: str) -> Response:
        return Response(shapes.TenantOut(self.tenant).data)


class TenantSuspend(PlatformView):
    """Stop a tenant's calls and changes."""

    who = "platform_admin"
    serializer_class = shapes.TenantOut

    @extend_schema(request=shapes.SuspendIn, responses=shapes.TenantOut, operation_id="tenants_suspend")
    def post(self, request: Request, tenant: str) -> Response:
        given = shapes.SuspendIn(data=request.data)
        given.is_valid(raise_exception=True)
        found = access.access_tenant(self.actor, tenant)
        done = services.suspend_tenant(actor=self.actor, tenant=found, reason=given.validated_data["reason"])
        return Response(shapes.TenantOut(done).data)


class TenantResume(PlatformView):
    """Let a suspended tenant call and change again."""

    who = "platform_admin"
    serializer_class = shapes.TenantOut

    @extend_schema(request=None, responses=shapes.TenantOut, operation_id="tenants_resume")
    def post(self, request: Request, tenant: str) -> Response:
        found = access.access_tenant(self.actor, tenant)
        return Response(shapes.TenantOut(services.resume_tenant(actor=self.actor, tenant=found)).data)


class TenantLimits(PlatformView):
    """What all keys of a tenant together may use."""

    who = "platform_admin"
    serializer_class = shapes.TenantOut

    @extend_schema(request=shapes.TenantLimitsIn, responses=shapes.TenantOut, operation_id="tenants_limits_update")
    def patch(self, request: Request, tenant: str) -> Response:
        given = shapes.TenantLimitsIn(data=request.data)
        given.is_valid(raise_exception=True)
        found = access.access_tenant(self.actor, tenant)
        changed = dataclasses.replace(limits_of(found), **changes(given.validated_data, found))
        weight = given.validated_data.get("weight", found.weight)
        done = services.set_tenant_limits(actor=self.actor, tenant=found, limits=changed, weight=weight)
        return Response(shapes.TenantOut(done).data)


class Members(TenantView):
    """Members of a tenant; ``POST`` changes the role of one. Platform admins may also add an account."""

    permissions = {"GET": Permission.VIEW, "POST": Permission.MANAGE_MEMBERS}
    serializer_class = shapes.MemberOut
    queryset = Member._base_manager.none()

    @extend_schema(responses=shapes.MemberOut(many=True), operation_id="members_list")
    def get(self, request: Request, tenant: str) -> Response:
        page = self.paginate_queryset(selectors.members_of(self.tenant))
        return self.get_paginated_response(shapes.MemberOut(page, many=True).data)

    @extend_schema(request=shapes.MemberIn, responses={201: shapes.MemberOut}, operation_id="members_set")
    def post(self, request: Request, tenant: str) -> Response:
        given = shapes.MemberIn(data=request.data)
        given.is_valid(raise_exception=True)
        member = services.set_member(
            actor=self.actor, tenant=self.tenant, user=self._user(given.validated_data["email"]),
            role=Role(given.validated_data["role"]),
        )  # fmt: skip
        return Response(shapes.MemberOut(member).data, status=201)

    def _user(self, email: str) -> User:
        """Whose role is to change. Who has an account elsewhere is not for a tenant to know: all others look alike."""
        if (member := selectors.member_by_email(self.tenant, email)) is not None:
            return member.user
        if not self.actor.is_platform_admin:
            raise errors.NotFound(
                f"{email!r} is no member of tenant {self.tenant.slug!r}; invite the address.", code="not_a_member"
            )
        return _user_by_email(email)


class MemberDetail(TenantView):
    """One member."""

    # Anybody may take themselves out; the service asks for more where it is somebody else.
    permissions = {"GET": Permission.VIEW, "DELETE": Permission.VIEW}
    serializer_class = shapes.MemberOut

    @extend_schema(responses=shapes.MemberOut, operation_id="members_retrieve")
    def get(self, request: Request, tenant: str, member_id: uuid.UUID) -> Response:
        return Response(shapes.MemberOut(access.access_member(self.actor, self.tenant, member_id)).data)

    @extend_schema(responses={204: None}, operation_id="members_remove")
    def delete(self, request: Request, tenant: str, member_id: uuid.UUID) -> Response:
        member = access.access_member(self.actor, self.tenant, member_id)
        services.remove_member(actor=self.actor, tenant=self.tenant, member=member)
        return Response(status=204)


class Events(TenantView):
    """The tenant's audit log, newest first."""

    serializer_class = shapes.EventOut
    queryset = AuditEvent.objects.none()

    @extend_schema(responses=shapes.EventOut(many=True), operation_id="events_list")
    def get(self, request: Request, tenant: str) -> Response:
        page = self.paginate_queryset(events_of_tenant(self.tenant.id))
        return self.get_paginated_response(shapes.EventOut(page, many=True).data)

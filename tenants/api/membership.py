"""REST of invitations and service accounts."""

import uuid
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from kernel import errors
from tenants import access, invitations, selectors, service_accounts, services
from tenants.api import serializers as shapes
from tenants.api.authentication import Caller
from tenants.api.base import PlatformView, TenantView
from tenants.api.keys import key_terms
from tenants.models import ApiKey, Invitation, ServiceAccount
from tenants.roles import Permission, Role


def _sent(invitation: Invitation, link: str) -> dict[str, Any]:
    return {**shapes.InvitationOut(invitation).data, "link": link or None}


class Invitations(TenantView):
    """Open invitations of a tenant. The link is in the answer to ``POST`` only where no mail took it."""

    permissions = {"GET": Permission.MANAGE_MEMBERS, "POST": Permission.MANAGE_MEMBERS}
    serializer_class = shapes.InvitationOut
    queryset = Invitation._base_manager.none()

    @extend_schema(responses=shapes.InvitationOut(many=True), operation_id="invitations_list")
    def get(self, request: Request, tenant: str) -> Response:
        page = self.paginate_queryset(selectors.invitations_of(self.tenant))
        return self.get_paginated_response(shapes.InvitationOut(page, many=True).data)

    @extend_schema(request=shapes.MemberIn, responses={201: shapes.InvitationSent}, operation_id="invitations_create")
    def post(self, request: Request, tenant: str) -> Response:
        """An ``Idempotency-Key`` is not taken here: the answer may hold a secret, which is never stored."""
        given = shapes.MemberIn(data=request.data)
        given.is_valid(raise_exception=True)
        row, link = invitations.invite(
            actor=self.actor, tenant=self.tenant, email=given.validated_data["email"],
            role=Role(given.validated_data["role"]),
        )  # fmt: skip
        return Response(_sent(row, link), status=201)


class InvitationDetail(TenantView):
    """One open invitation."""

    permissions = {"GET": Permission.MANAGE_MEMBERS, "DELETE": Permission.MANAGE_MEMBERS}
    serializer_class = shapes.InvitationOut

    @extend_schema(responses=shapes.InvitationOut, operation_id="invitations_retrieve")
    def get(self, request: Request, tenant: str, invitation_id: uuid.UUID) -> Response:
        return Response(shapes.InvitationOut(access.access_invitation(self.actor, self.tenant, invitation_id)).data)

    @extend_schema(responses={204: None}, operation_id="invitations_revoke")
    def delete(self, request: Request, tenant: str, invitation_id: uuid.UUID) -> Response:
        row = access.access_invitation(self.actor, self.tenant, invitation_id)
        invitations.revoke(actor=self.actor, tenant=self.tenant, invitation=row)
        return Response(status=204)


class InvitationResend(TenantView):
    """A new link for an open invitation; the one before is dead."""

    permissions = {"POST": Permission.MANAGE_MEMBERS}
    serializer_class = shapes.InvitationSent

    @extend_schema(request=None, responses=shapes.InvitationSent, operation_id="invitations_resend")
    def post(self, request: Request, tenant: str, invitation_id: uuid.UUID) -> Response:
        """An ``Idempotency-Key`` is not taken here: the answer may hold a secret, which is never stored."""
        row = access.access_invitation(self.actor, self.tenant, invitation_id)
        return Response(_sent(*invitations.resend(actor=self.actor, tenant=self.tenant, invitation=row)))


class InvitationAccept(PlatformView):
    """Take the role that a link offers, with the account that calls. New accounts are made in the console."""

    serializer_class = shapes.MembershipOut

    @extend_schema(request=shapes.InvitationAccept, responses=shapes.MembershipOut, operation_id="invitations_accept")
    def post(self, request: Request) -> Response:
        given = shapes.InvitationAccept(data=request.data)
        given.is_valid(raise_exception=True)
        caller: object = request.user
        user = caller.user if isinstance(caller, Caller) else None
        if user is None:
            raise errors.Forbidden("API keys join nothing; sign in as the person who was invited.")
        member = invitations.accept(actor=self.actor, user=user, text=given.validated_data["token"])
        body = {"slug": member.tenant.slug, "name": member.tenant.name, "role": member.role}
        return Response(shapes.MembershipOut(body).data)


class ServiceAccounts(TenantView):
    """Members that are no person."""

    permissions = {"GET": Permission.VIEW, "POST": Permission.MANAGE_MEMBERS}
    serializer_class = shapes.ServiceAccountOut
    queryset = ServiceAccount._base_manager.none()

    @extend_schema(responses=shapes.ServiceAccountOut(many=True), operation_id="service_accounts_list")
    def get(self, request: Request, tenant: str) -> Response:
        page = self.paginate_queryset(selectors.service_accounts_of(self.tenant).order_by("-id"))
        return self.get_paginated_response(shapes.ServiceAccountOut(page, many=True).data)

    @extend_schema(
        request=shapes.ServiceAccountIn,
        responses={201: shapes.ServiceAccountOut},
        operation_id="service_accounts_create",
    )
    def post(self, request: Request, tenant: str) -> Response:
        given = shapes.ServiceAccountIn(data=request.data)
        given.is_valid(raise_exception=True)

        def work() -> Response:
            account = service_accounts.create_service_account(
                actor=self.actor, tenant=self.tenant, name=given.validated_data["name"],
                role=Role(given.validated_data["role"]),
            )  # fmt: skip
            return Response(shapes.ServiceAccountOut(account).data, status=201)

        return self.once(request, work)


class _OfAccount(TenantView):
    """A route below one service account."""

    def account(self, account_id: uuid.UUID, permission: Permission = Permission.MANAGE_MEMBERS) -> ServiceAccount:
        """The row, if the caller may."""
        return access.access_service_account(self.actor, self.tenant, account_id, permission)


class ServiceAccountDetail(_OfAccount):
    """One service account."""

    permissions = {
        "GET": Permission.VIEW, "PATCH": Permission.MANAGE_MEMBERS, "DELETE": Permission.MANAGE_MEMBERS,
    }  # fmt: skip
    serializer_class = shapes.ServiceAccountOut

    @extend_schema(responses=shapes.ServiceAccountOut, operation_id="service_accounts_retrieve")
    def get(self, request: Request, tenant: str, account_id: uuid.UUID) -> Response:
        return Response(shapes.ServiceAccountOut(self.account(account_id, Permission.VIEW)).data)

    @extend_schema(
        request=shapes.ServiceAccountPatch, responses=shapes.ServiceAccountOut, operation_id="service_accounts_update"
    )
    def patch(self, request: Request, tenant: str, account_id: uuid.UUID) -> Response:
        """Another role."""
        account = self.account(account_id)
        given = shapes.ServiceAccountPatch(data=request.data)
        given.is_valid(raise_exception=True)
        done = service_accounts.set_service_role(
            actor=self.actor, tenant=self.tenant, account=account, role=Role(given.validated_data["role"])
        )
        return Response(shapes.ServiceAccountOut(done).data)

    @extend_schema(responses={204: None}, operation_id="service_accounts_delete")
    def delete(self, request: Request, tenant: str, account_id: uuid.UUID) -> Response:
        """All its keys are revoked at once."""
        account = self.account(account_id)
        service_accounts.delete_service_account(actor=self.actor, tenant=self.tenant, account=account)
        return Response(status=204)


class ServiceAccountDisable(_OfAccount):
    """Revoke all keys at once, and let it have no new ones."""

    permissions = {"POST": Permission.MANAGE_MEMBERS}
    serializer_class = shapes.ServiceAccountEnded

    @extend_schema(request=None, responses=shapes.ServiceAccountEnded, operation_id="service_accounts_disable")
    def post(self, request: Request, tenant: str, account_id: uuid.UUID) -> Response:
        account = self.account(account_id)
        count = service_accounts.disable_service_account(actor=self.actor, tenant=self.tenant, account=account)
        return Response({**shapes.ServiceAccountOut(account).data, "keys_revoked": count})


class ServiceAccountEnable(_OfAccount):
    """Let it have keys again; revoked ones stay revoked."""

    permissions = {"POST": Permission.MANAGE_MEMBERS}
    serializer_class = shapes.ServiceAccountOut

    @extend_schema(request=None, responses=shapes.ServiceAccountOut, operation_id="service_accounts_enable")
    def post(self, request: Request, tenant: str, account_id: uuid.UUID) -> Response:
        account = self.account(account_id)
        done = service_accounts.enable_service_account(actor=self.actor, tenant=self.tenant, account=account)
        return Response(shapes.ServiceAccountOut(done).data)


class ServiceAccountKeys(_OfAccount):
    """Keys of a service account. They are edited, rotated and revoked like any key, by who may manage members."""

    permissions = {"GET": Permission.VIEW, "POST": Permission.MANAGE_MEMBERS}
    serializer_class = shapes.KeyOut
    queryset = ApiKey._base_manager.none()

    @extend_schema(responses=shapes.KeyOut(many=True), operation_id="service_account_keys_list")
    def get(self, request: Request, tenant: str, account_id: uuid.UUID) -> Response:
        page = self.paginate_queryset(selectors.keys_of_account(self.account(account_id, Permission.VIEW)))
        return self.get_paginated_response(shapes.KeyOut(page, many=True).data)

    @extend_schema(request=shapes.KeyIn, responses={201: shapes.KeyCreated}, operation_id="service_account_keys_create")
    def post(self, request: Request, tenant: str, account_id: uuid.UUID) -> Response:
        """An ``Idempotency-Key`` is not taken here: the answer holds a secret, which is never stored."""
        self.confirm_recent()
        account = self.account(account_id)
        given = shapes.KeyIn(data=request.data)
        given.is_valid(raise_exception=True)
        data = given.validated_data
        key, text = services.create_api_key(
            actor=self.actor, tenant=self.tenant, name=data["name"], scopes=data["scopes"], service_account=account,
            **key_terms(data),
        )  # fmt: skip
        return Response({**shapes.KeyOut(key).data, "key": text}, status=201)

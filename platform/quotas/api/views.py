"""REST of quotas: everybody in a tenant sees them, platform admins set them."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from quotas import selectors, services
from quotas.api import serializers as shapes
from quotas.preview import preview
from tenants import access
from tenants.api.base import PlatformView, TenantView
from tenants.models import Tenant


def _shown(tenant: Tenant) -> Response:
    return Response(shapes.QuotaOut(shapes.plain(selectors.lines_of(tenant), selectors.terms_of(tenant))).data)


class Quota(TenantView):
    """What the tenant holds and may hold."""

    serializer_class = shapes.QuotaOut

    @extend_schema(responses=shapes.QuotaOut, operation_id="quota_retrieve")
    def get(self, request: Request, tenant: str) -> Response:
        return _shown(self.tenant)


class QuotaAdmin(PlatformView):
    """Set the limits of a tenant. A limit below the use takes nothing away and gives nothing more."""

    who = "platform_admin"
    serializer_class = shapes.QuotaIn

    @extend_schema(request=shapes.QuotaIn, responses=shapes.QuotaOut, operation_id="quota_set")
    def put(self, request: Request, tenant: str) -> Response:
        row = access.access_tenant(self.actor, tenant)
        given = shapes.QuotaIn(data=request.data)
        given.is_valid(raise_exception=True)
        services.set_quota(actor=self.actor, tenant=row, **shapes.arguments(given.validated_data))
        return _shown(row)


class QuotaPreview(PlatformView):
    """Whom a change of a tenant's quota would hurt. Nothing is written."""

    who = "platform_admin"
    serializer_class = shapes.QuotaIn

    @extend_schema(request=shapes.QuotaIn, responses=shapes.PreviewOut, operation_id="quota_preview")
    def post(self, request: Request, tenant: str) -> Response:
        row = access.access_tenant(self.actor, tenant)
        given = shapes.QuotaIn(data=request.data)
        given.is_valid(raise_exception=True)
        found = preview(actor=self.actor, tenant=row, **shapes.arguments(given.validated_data))
        return Response(shapes.PreviewOut(shapes.preview_body(found)).data)


class Groups(PlatformView):
    """Groups of tenants that hold no more than a limit together."""

    who = "platform_admin"
    serializer_class = shapes.GroupsOut
    pagination_class = None

    @extend_schema(responses=shapes.GroupsOut, operation_id="quota_groups_list")
    def get(self, request: Request) -> Response:
        return Response(shapes.GroupsOut({"items": [_group(each) for each in selectors.groups()]}).data)


class Group(PlatformView):
    """One group."""

    who = "platform_admin"
    serializer_class = shapes.GroupIn

    @extend_schema(request=shapes.GroupIn, responses=shapes.GroupOut, operation_id="quota_group_set")
    def put(self, request: Request, group: str) -> Response:
        given = shapes.GroupIn(data=request.data)
        given.is_valid(raise_exception=True)
        changes = shapes.arguments(given.validated_data)["changes"]
        services.set_group(actor=self.actor, name=group, changes=changes)
        (found,) = [each for each in selectors.groups() if each["group"].name == group]
        return Response(shapes.GroupOut(_group(found)).data)

    @extend_schema(responses={204: None}, operation_id="quota_group_delete")
    def delete(self, request: Request, group: str) -> Response:
        services.delete_group(actor=self.actor, name=group)
        return Response(status=204)


def _group(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": found["group"].name,
        "members": found["members"],
        "items": [shapes.item(line) for line in found["lines"]],
    }

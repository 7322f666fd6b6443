"""REST of quotas: everybody in a tenant sees them, platform admins set them."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from quotas import selectors, services
from quotas.api import serializers as shapes
from quotas.models import QuotaGroup
from quotas.preview import preview, preview_deletion, preview_group
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
        return Response(shapes.GroupsOut({"items": [shapes.group(each) for each in selectors.groups()]}).data)


class Group(PlatformView):
    """One group."""

    who = "platform_admin"
    serializer_class = shapes.GroupIn

    @extend_schema(responses=shapes.GroupOut, operation_id="quota_group_retrieve")
    def get(self, request: Request, group: str) -> Response:
        return _group(services.group_named(group))

    @extend_schema(request=shapes.GroupIn, responses=shapes.GroupOut, operation_id="quota_group_set")
    def put(self, request: Request, group: str) -> Response:
        given = shapes.GroupIn(data=request.data)
        given.is_valid(raise_exception=True)
        changes = shapes.arguments(given.validated_data)["changes"]
        return _group(services.set_group(actor=self.actor, name=group, changes=changes))

    @extend_schema(responses={204: None}, operation_id="quota_group_delete")
    def delete(self, request: Request, group: str) -> Response:
        services.delete_group(actor=self.actor, name=group)
        return Response(status=204)


class GroupPreview(PlatformView):
    """Whom a change of a group's limits, or its deletion, would hurt. Nothing is written.

    What a tenant's coming into a group or leaving it would do is in the preview of the tenant's quota.
    """

    who = "platform_admin"
    serializer_class = shapes.GroupPreviewIn

    @extend_schema(request=shapes.GroupPreviewIn, responses=shapes.PreviewOut, operation_id="quota_group_preview")
    def post(self, request: Request, group: str) -> Response:
        given = shapes.GroupPreviewIn(data=request.data)
        given.is_valid(raise_exception=True)
        if given.validated_data["delete"]:
            found = preview_deletion(actor=self.actor, name=group)
        else:
            changes = shapes.arguments(given.validated_data)["changes"]
            found = preview_group(actor=self.actor, name=group, changes=changes)
        return Response(shapes.PreviewOut(shapes.preview_body(found)).data)


def _group(group: QuotaGroup) -> Response:
    return Response(shapes.GroupOut(shapes.group(selectors.group_with_members(group))).data)

"""REST of quotas: everybody in a tenant sees them, platform admins set them."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from quotas import selectors, services
from quotas.amount import Amount, Kind
from quotas.api import serializers as shapes
from tenants import access
from tenants.api.base import PlatformView, TenantView


class Quota(TenantView):
    """What the tenant holds and may hold."""

    serializer_class = shapes.QuotaOut

    @extend_schema(responses=shapes.QuotaOut, operation_id="quota_retrieve")
    def get(self, request: Request, tenant: str) -> Response:
        return Response(shapes.QuotaOut(shapes.plain(selectors.lines_of(self.tenant))).data)


class QuotaAdmin(PlatformView):
    """Set the limits of a tenant. A limit below the use takes nothing away and gives nothing more."""

    who = "platform_admin"
    serializer_class = shapes.QuotaIn

    @extend_schema(request=shapes.QuotaIn, responses=shapes.QuotaOut, operation_id="quota_set")
    def put(self, request: Request, tenant: str) -> Response:
        row = access.access_tenant(self.actor, tenant)
        given = shapes.QuotaIn(data=request.data)
        given.is_valid(raise_exception=True)
        changes = {Kind(name): Amount.limit(number) for name, number in given.validated_data.items()}
        services.set_quota(actor=self.actor, tenant=row, changes=changes)
        return Response(shapes.QuotaOut(shapes.plain(selectors.lines_of(row))).data)

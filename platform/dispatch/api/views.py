"""REST of gateways, for platform admins."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from fleet import access, selectors, services
from fleet.api.serializers import GatewayOut
from fleet.models import Gateway
from ledger import generations
from tenants.api.base import PlatformView


class GatewaysView(PlatformView):
    """The processes that take inference traffic."""

    who = "platform_admin"
    serializer_class = GatewayOut
    queryset = Gateway.objects.none()

    @extend_schema(operation_id="gateways_list", summary="List gateways", responses=GatewayOut(many=True))
    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(selectors.gateways())
        return self.get_paginated_response(GatewayOut(page, many=True, context=_newest()).data)


def _newest() -> dict[str, int]:
    return {"newest": generations.current(generations.ROUTES)}


class GatewayRemoveView(PlatformView):
    """Refuse a gateway's credential from now on."""

    who = "platform_admin"
    serializer_class = GatewayOut
    pagination_class = None

    @extend_schema(operation_id="gateways_remove", summary="Take a gateway out", request=None, responses=GatewayOut)
    def post(self, request: Request, gateway_id: Any) -> Response:
        def work() -> Response:
            gateway = access.access_gateway(self.actor, gateway_id)
            removed = services.remove_gateway(actor=self.actor, gateway=gateway)
            return Response(GatewayOut(removed, context=_newest()).data)

        return self.once(request, work)

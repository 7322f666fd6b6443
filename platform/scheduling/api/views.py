"""REST of scheduling."""

from typing import ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.api.serializers import FitIn, FitOut
from scheduling.fit import fit
from tenants.api.base import TenantView
from tenants.roles import Permission


class FitView(TenantView):
    """Would it fit? Asks the planner and writes nothing."""

    permissions: ClassVar = {"POST": Permission.VIEW}
    serializer_class = FitIn
    pagination_class = None

    @extend_schema(
        operation_id="fit", summary="Ask whether a deployment would find a place", request=FitIn, responses=FitOut
    )
    def post(self, request: Request, tenant: str) -> Response:
        body = FitIn(data=request.data)
        body.is_valid(raise_exception=True)
        return Response(FitOut(fit(actor=self.actor, tenant=self.tenant, **body.validated_data)).data)

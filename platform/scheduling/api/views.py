"""REST of scheduling."""

from typing import ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.api.serializers import EvaluationIn, EvaluationOut, FitIn, FitOut
from scheduling.evaluation import evaluate
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


class EvaluationsView(TenantView):
    """Would a model fit that is not uploaded yet? Reads its config, asks the planner and writes nothing."""

    permissions: ClassVar = {"POST": Permission.VIEW}
    serializer_class = EvaluationIn
    pagination_class = None

    @extend_schema(
        operation_id="evaluations_create",
        summary="Judge a model by its config.json, before it is uploaded",
        request=EvaluationIn,
        responses=EvaluationOut,
    )
    def post(self, request: Request, tenant: str) -> Response:
        body = EvaluationIn(data=request.data)
        body.is_valid(raise_exception=True)
        return Response(EvaluationOut(evaluate(actor=self.actor, tenant=self.tenant, **body.validated_data)).data)

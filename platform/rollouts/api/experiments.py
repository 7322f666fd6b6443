"""REST of experiments."""

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from rollouts import access, experiments, selectors
from rollouts.api.serializers import ExperimentDetailOut, ExperimentIn, ExperimentOut
from rollouts.models import Experiment
from serving.access import access_endpoint
from tenants.api.base import TenantView
from tenants.roles import Permission


class ExperimentsView(TenantView):
    """Fixed splits with a comparison."""

    permissions: ClassVar = {"GET": Permission.VIEW, "POST": Permission.DEPLOY}
    serializer_class = ExperimentOut
    queryset = Experiment._base_manager.none()

    @extend_schema(operation_id="experiments_list", summary="List experiments", responses=ExperimentOut(many=True))
    def get(self, request: Request, tenant: str) -> Response:
        page = self.paginate_queryset(selectors.experiments_of(self.tenant))
        return self.get_paginated_response(ExperimentOut(page, many=True).data)

    @extend_schema(
        operation_id="experiments_create",
        summary="Start an experiment",
        request=ExperimentIn,
        responses={201: ExperimentDetailOut},
    )
    def post(self, request: Request, tenant: str) -> Response:
        def work() -> Response:
            body = ExperimentIn(data=request.data)
            body.is_valid(raise_exception=True)
            values = dict(body.validated_data)
            endpoint = access_endpoint(self.actor, self.tenant, values.pop("endpoint"), Permission.DEPLOY)
            made = experiments.start_experiment(
                actor=self.actor,
                tenant=self.tenant,
                endpoint=endpoint,
                candidate_id=values.pop("candidate"),
                **values,
            )
            found = access.access_experiment(self.actor, self.tenant, made.id)
            return Response(ExperimentDetailOut(found).data, status=201)

        return self.once(request, work)


class ExperimentView(TenantView):
    """One experiment."""

    permissions: ClassVar = {"GET": Permission.VIEW}
    serializer_class = ExperimentDetailOut
    pagination_class = None

    @extend_schema(operation_id="experiments_retrieve", summary="Show an experiment", responses=ExperimentDetailOut)
    def get(self, request: Request, tenant: str, experiment_id: Any) -> Response:
        return Response(ExperimentDetailOut(access.access_experiment(self.actor, self.tenant, experiment_id)).data)


class EndExperimentView(TenantView):
    """Give the weights of before back."""

    permissions: ClassVar = {"POST": Permission.DEPLOY}
    serializer_class = ExperimentDetailOut
    pagination_class = None

    @extend_schema(
        operation_id="experiments_end", summary="End an experiment", request=None, responses=ExperimentDetailOut
    )
    def post(self, request: Request, tenant: str, experiment_id: Any) -> Response:
        def work() -> Response:
            found = access.access_experiment(self.actor, self.tenant, experiment_id, Permission.DEPLOY)
            experiments.end_experiment(actor=self.actor, tenant=self.tenant, experiment=found)
            fresh = access.access_experiment(self.actor, self.tenant, experiment_id)
            return Response(ExperimentDetailOut(fresh).data)

        return self.once(request, work)

"""REST of deployments and their replicas."""

from typing import Any, ClassVar

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from kernel.api.paging import CursorPages
from ledger.models import AuditEvent
from serving import access, events, selectors, services
from serving.api.serializers import (
    DeploymentDetailOut,
    DeploymentIn,
    DeploymentOut,
    DeploymentPatch,
    LogsOut,
    MetricsOut,
    ReplicaOut,
    detail_body,
    series_body,
)
from serving.models import Deployment, Replica
from telemetry import series
from tenants.api.base import TenantView
from tenants.api.serializers import EventOut
from tenants.roles import Permission


class OnDeployment(TenantView):
    """A route about one deployment."""

    pagination_class = None  # lists among these say so themselves

    def found(self, permission: Permission = Permission.VIEW) -> Deployment:
        """The deployment of the path."""
        return access.access_deployment(self.actor, self.tenant, self.kwargs["deployment_id"], permission)

    def shown(self) -> Response:
        """The deployment as it is now."""
        return Response(detail_body(selectors.deployment_detail(self.found())))


class DeploymentView(OnDeployment):
    """One deployment."""

    permissions: ClassVar = {"GET": Permission.VIEW, "PATCH": Permission.DEPLOY, "DELETE": Permission.DEPLOY}
    serializer_class = DeploymentDetailOut

    @extend_schema(operation_id="deployments_retrieve", summary="Show a deployment", responses=DeploymentDetailOut)
    def get(self, request: Request, tenant: str, deployment_id: Any) -> Response:
        return self.shown()

    @extend_schema(
        operation_id="deployments_update",
        summary="Scale a deployment, change its share of the traffic or its priority",
        request=DeploymentPatch,
        responses=DeploymentDetailOut,
    )
    def patch(self, request: Request, tenant: str, deployment_id: Any) -> Response:
        body = DeploymentPatch(data=request.data)
        body.is_valid(raise_exception=True)
        found = self.found(Permission.DEPLOY)
        services.scale(actor=self.actor, tenant=self.tenant, deployment=found, **body.validated_data)
        return self.shown()

    @extend_schema(
        operation_id="deployments_delete",
        summary="Drain a deployment, then forget it",
        responses={202: DeploymentDetailOut},
    )
    def delete(self, request: Request, tenant: str, deployment_id: Any) -> Response:
        # The row is gone already when nothing ran: answer from what the service returns.
        done = services.delete_deployment(
            actor=self.actor, tenant=self.tenant, deployment=self.found(Permission.DEPLOY)
        )
        return Response(detail_body(selectors.deployment_detail(done)), status=202)


class DeploymentsView(TenantView):
    """Revisions serving behind endpoints."""

    permissions: ClassVar = {"GET": Permission.VIEW, "POST": Permission.DEPLOY}
    serializer_class = DeploymentOut
    queryset = Deployment._base_manager.none()

    @extend_schema(operation_id="deployments_list", summary="List deployments", responses=DeploymentOut(many=True))
    def get(self, request: Request, tenant: str) -> Response:
        page = self.paginate_queryset(selectors.deployments_of(self.tenant, bare=True))
        return self.get_paginated_response(DeploymentOut(page, many=True).data)

    @extend_schema(
        operation_id="deployments_create",
        summary="Deploy a version",
        request=DeploymentIn,
        responses={201: DeploymentDetailOut},
    )
    def post(self, request: Request, tenant: str) -> Response:
        def work() -> Response:
            body = DeploymentIn(data=request.data)
            body.is_valid(raise_exception=True)
            values = dict(body.validated_data)
            made = services.deploy_version(
                actor=self.actor, tenant=self.tenant, endpoint_name=values.pop("endpoint"), **values
            )
            found = access.access_deployment(self.actor, self.tenant, made.id)
            return Response(detail_body(selectors.deployment_detail(found)), status=201)

        return self.once(request, work)


class StopView(OnDeployment):
    """Drain all replicas of a deployment and keep it."""

    permissions: ClassVar = {"POST": Permission.DEPLOY}
    serializer_class = DeploymentDetailOut

    @extend_schema(
        operation_id="deployments_stop", summary="Stop a deployment", request=None, responses=DeploymentDetailOut
    )
    def post(self, request: Request, tenant: str, deployment_id: Any) -> Response:
        def work() -> Response:
            services.stop(actor=self.actor, tenant=self.tenant, deployment=self.found(Permission.DEPLOY))
            return self.shown()

        return self.once(request, work)


class StartView(OnDeployment):
    """Serve again."""

    permissions: ClassVar = {"POST": Permission.DEPLOY}
    serializer_class = DeploymentDetailOut

    @extend_schema(
        operation_id="deployments_start", summary="Start a deployment", request=None, responses=DeploymentDetailOut
    )
    def post(self, request: Request, tenant: str, deployment_id: Any) -> Response:
        def work() -> Response:
            services.start(actor=self.actor, tenant=self.tenant, deployment=self.found(Permission.DEPLOY))
            return self.shown()

        return self.once(request, work)


class ReplicasView(OnDeployment):
    """The replicas of a deployment, stopped ones included while they are remembered."""

    permissions: ClassVar = {"GET": Permission.VIEW}
    serializer_class = ReplicaOut
    queryset = Replica._base_manager.none()
    pagination_class = CursorPages  # type: ignore[assignment]

    @extend_schema(operation_id="replicas_list", summary="List replicas", responses=ReplicaOut(many=True))
    def get(self, request: Request, tenant: str, deployment_id: Any) -> Response:
        page = self.paginate_queryset(selectors.replicas_of(self.found())) or []
        return self.get_paginated_response(ReplicaOut(selectors.placed(page), many=True).data)


class LogsView(OnDeployment):
    """The last lines of an engine's log."""

    permissions: ClassVar = {"GET": Permission.VIEW}
    serializer_class = LogsOut

    @extend_schema(operation_id="replicas_logs", summary="Show a replica's last log lines", responses=LogsOut)
    def get(self, request: Request, tenant: str, deployment_id: Any, replica_id: Any) -> Response:
        replica = access.access_replica(self.actor, self.tenant, self.found(), replica_id)
        return Response({"lines": replica.log_tail})


class EventsView(OnDeployment):
    """What happened to a deployment and its replicas."""

    permissions: ClassVar = {"GET": Permission.VIEW}
    serializer_class = EventOut
    queryset = AuditEvent.objects.none()
    pagination_class = CursorPages  # type: ignore[assignment]

    @extend_schema(
        operation_id="deployments_events", summary="List a deployment's events", responses=EventOut(many=True)
    )
    def get(self, request: Request, tenant: str, deployment_id: Any) -> Response:
        page = self.paginate_queryset(events.events_of(self.found()))
        return self.get_paginated_response(EventOut(page, many=True).data)


class Window(serializers.Serializer[Any]):
    """How far back."""

    minutes = serializers.IntegerField(min_value=1, max_value=series.MAX_MINUTES, default=60)


class MetricsView(OnDeployment):
    """Short-term series of a deployment's replicas."""

    permissions: ClassVar = {"GET": Permission.VIEW}
    serializer_class = MetricsOut

    @extend_schema(
        operation_id="deployments_metrics",
        summary="Show short-term series",
        parameters=[OpenApiParameter("minutes", int, description="How far back, 1 to 120.", default=60)],
        responses=MetricsOut,
    )
    def get(self, request: Request, tenant: str, deployment_id: Any) -> Response:
        window = Window(data=request.query_params)
        window.is_valid(raise_exception=True)
        ids = list(selectors.replicas_of(self.found()).values_list("id", flat=True)[: series.MAX_REPLICAS])
        found = series.series(ids, window.validated_data["minutes"])
        body = {
            "interval_seconds": int(series.INTERVAL.total_seconds()),
            "series": [series_body(key, points) for key, points in found.items()],
        }
        return Response(MetricsOut(body).data)

"""Routes of serving under ``/api/v1/``."""

from django.urls import path

from serving.api import deployments, endpoints

_TENANT = "tenants/<slug:tenant>/"
_ENDPOINT = _TENANT + "endpoints/<str:endpoint>"
_DEPLOYMENT = _TENANT + "deployments/<uuid:deployment_id>"

urlpatterns = [
    path(_TENANT + "endpoints", endpoints.EndpointsView.as_view(), name="endpoints"),
    path(_ENDPOINT, endpoints.EndpointView.as_view(), name="endpoint"),
    path(_ENDPOINT + "/grants", endpoints.GrantsView.as_view(), name="grants"),
    path(_ENDPOINT + "/grants/<uuid:grant_id>", endpoints.GrantView.as_view(), name="grant"),
    path(_TENANT + "callable-endpoints", endpoints.CallableEndpointsView.as_view(), name="callable-endpoints"),
    path(_TENANT + "deployments", deployments.DeploymentsView.as_view(), name="deployments"),
    path(_DEPLOYMENT, deployments.DeploymentView.as_view(), name="deployment"),
    path(_DEPLOYMENT + "/stop", deployments.StopView.as_view(), name="deployment-stop"),
    path(_DEPLOYMENT + "/start", deployments.StartView.as_view(), name="deployment-start"),
    path(_DEPLOYMENT + "/replicas", deployments.ReplicasView.as_view(), name="replicas"),
    path(_DEPLOYMENT + "/replicas/<uuid:replica_id>/logs", deployments.LogsView.as_view(), name="replica-logs"),
    path(_DEPLOYMENT + "/events", deployments.EventsView.as_view(), name="deployment-events"),
    path(_DEPLOYMENT + "/metrics", deployments.MetricsView.as_view(), name="deployment-metrics"),
]

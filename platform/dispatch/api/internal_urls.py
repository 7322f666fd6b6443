"""Routes of agents and gateways under ``/internal/v1/``."""

from django.urls import path

from dispatch.api import internal

urlpatterns = [
    path("nodes/join", internal.node_join, name="internal-node-join"),
    path("nodes/report", internal.node_report, name="internal-node-report"),
    path("nodes/assignments", internal.node_assignments, name="internal-node-assignments"),
    path("nodes/artifacts/<str:sha256>", internal.node_artifact, name="internal-node-artifact"),
    path("gateways/join", internal.gateway_join, name="internal-gateway-join"),
    path("gateways/report", internal.gateway_report, name="internal-gateway-report"),
    path("gateways/usage", internal.gateway_usage, name="internal-gateways-usage"),
    path("gateways/routes", internal.gateway_routes, name="internal-gateway-routes"),
]

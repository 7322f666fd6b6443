"""Routes of the fleet under ``/api/v1/``."""

from django.urls import path

from fleet.api import views

_NODE = "nodes/<uuid:node_id>"

urlpatterns = [
    path("nodes", views.NodesView.as_view(), name="nodes"),
    path("nodes/tokens", views.JoinTokensView.as_view(), name="node-tokens"),
    path(_NODE, views.NodeView.as_view(), name="node"),
    path(_NODE + "/cordon", views.CordonView.as_view(), name="node-cordon"),
    path(_NODE + "/uncordon", views.UncordonView.as_view(), name="node-uncordon"),
    path(_NODE + "/drain", views.DrainView.as_view(), name="node-drain"),
    path(_NODE + "/remove", views.RemoveView.as_view(), name="node-remove"),
    path("devices", views.DevicesView.as_view(), name="devices"),
]

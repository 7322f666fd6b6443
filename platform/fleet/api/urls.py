"""Routes of the fleet under ``/api/v1/``."""

from django.urls import path

from fleet.api import devices, policy, views

_NODE = "nodes/<uuid:node_id>"
_DEVICE = "devices/<uuid:device_id>"

urlpatterns = [
    path("nodes", views.NodesView.as_view(), name="nodes"),
    path("nodes/tokens", views.JoinTokensView.as_view(), name="node-tokens"),
    path(_NODE, views.NodeView.as_view(), name="node"),
    path(_NODE + "/cordon", views.CordonView.as_view(), name="node-cordon"),
    path(_NODE + "/uncordon", views.UncordonView.as_view(), name="node-uncordon"),
    path(_NODE + "/drain", views.DrainView.as_view(), name="node-drain"),
    path(_NODE + "/fault-domain", views.FaultDomainView.as_view(), name="node-fault-domain"),
    path(_NODE + "/remove", views.RemoveView.as_view(), name="node-remove"),
    path("devices", devices.DevicesView.as_view(), name="devices"),
    path("health-events", devices.HealthLogView.as_view(), name="health-events"),
    path(_DEVICE, devices.DeviceView.as_view(), name="device"),
    path(_DEVICE + "/quarantine", devices.QuarantineView.as_view(), name="device-quarantine"),
    path(_DEVICE + "/return", devices.ReturnView.as_view(), name="device-return"),
    path(_DEVICE + "/layout", devices.LayoutView.as_view(), name="device-layout"),
    path(_DEVICE + "/layout/rollback", devices.LayoutRollbackView.as_view(), name="device-layout-rollback"),
    path("tenants/<slug:tenant>/isolation", policy.IsolationView.as_view(), name="tenant-isolation"),
    path(_DEVICE + "/retire", devices.RetireView.as_view(), name="device-retire"),
]

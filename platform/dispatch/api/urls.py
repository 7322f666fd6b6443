"""Routes of gateways, and of what they acknowledge, under ``/api/v1/``."""

from django.urls import path

from dispatch.api import keys, views

urlpatterns = [
    path("tenants/<slug:tenant>/keys/<uuid:key_id>/revoke", keys.KeyRevoke.as_view(), name="api-key-revoke"),
    path("gateways", views.GatewaysView.as_view(), name="gateways"),
    path("gateways/<uuid:gateway_id>/remove", views.GatewayRemoveView.as_view(), name="gateway-remove"),
]

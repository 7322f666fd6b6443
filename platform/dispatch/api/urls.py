"""Routes of gateways under ``/api/v1/``."""

from django.urls import path

from dispatch.api import views

urlpatterns = [
    path("gateways", views.GatewaysView.as_view(), name="gateways"),
    path("gateways/<uuid:gateway_id>/remove", views.GatewayRemoveView.as_view(), name="gateway-remove"),
]

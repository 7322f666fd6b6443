"""Sockets of the console's pages."""

from django.urls import path

from console.live.consumers import PlatformHints, TenantHints

urlpatterns = [
    path("ws/t/<slug:slug>/", TenantHints.as_asgi()),
    path("ws/platform/", PlatformHints.as_asgi()),
]

"""All routes of the control plane. Every room's REST is mounted here by name."""

from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView

from console.pages import reference
from controlplane import health

api = [
    path("", include("tenants.api.urls")),
    path("", include("catalog.api.urls")),
    path("", include("fleet.api.urls")),
    path("", include("quotas.api.urls")),
    path("", include("serving.api.urls")),
    path("", include("scheduling.api.urls")),
    path("", include("rollouts.api.urls")),
    path("", include("metering.api.urls")),
    path("", include("dispatch.api.urls")),
]

urlpatterns = [
    path("healthz", health.live, name="live"),
    path("readyz", health.ready, name="ready"),
    path("api/v1/", include(api)),
    path("api/schema", SpectacularAPIView.as_view(authentication_classes=[], permission_classes=[]), name="schema"),
    path("api/docs", reference.index, name="docs"),
    path("internal/v1/", include("dispatch.api.internal_urls")),
    path("", include("console.urls")),
]

handler400 = "controlplane.failures.bad_request"
handler403 = "controlplane.failures.forbidden"
handler404 = "controlplane.failures.not_found"
handler429 = "console.accounts.too_many"
handler500 = "controlplane.failures.server_error"

"""Routes of scheduling under ``/api/v1/``."""

from django.urls import path

from scheduling.api.layouts import LayoutProposalsView
from scheduling.api.views import EvaluationsView, FitView

urlpatterns = [
    path("tenants/<slug:tenant>/fit", FitView.as_view(), name="fit"),
    path("tenants/<slug:tenant>/evaluations", EvaluationsView.as_view(), name="evaluations"),
    path("layouts/proposals", LayoutProposalsView.as_view(), name="layout-proposals"),
]

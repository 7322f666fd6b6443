from django.urls import path

from metering.api import views

urlpatterns = [
    path("tenants/<slug:tenant>/usage", views.Usage.as_view(), name="api-usage"),
]

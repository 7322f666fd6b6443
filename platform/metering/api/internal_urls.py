from django.urls import path

from metering.api import internal

urlpatterns = [
    path("gateways/usage", internal.usage, name="internal-gateways-usage"),
]

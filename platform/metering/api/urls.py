from django.urls import path

from metering.api import limits, prices, views

urlpatterns = [
    path("tenants/<slug:tenant>/usage", views.Usage.as_view(), name="api-usage"),
    path("tenants/<slug:tenant>/limits", limits.TenantLimitsUse.as_view(), name="api-limits"),
    path("tenants/<slug:tenant>/prices", prices.TenantPrices.as_view(), name="api-tenant-prices"),
    path("admin/prices", prices.Prices.as_view(), name="api-prices"),
    path("admin/tenants/<slug:tenant>/prices/<str:endpoint>", prices.EndpointPrice.as_view(), name="api-price"),
]

from django.urls import path

from metering.api import devices, limits, prices, views

urlpatterns = [
    path("tenants/<slug:tenant>/usage", views.Usage.as_view(), name="api-usage"),
    path("tenants/<slug:tenant>/usage/devices", devices.TenantHeld.as_view(), name="api-held"),
    path("admin/usage/devices", devices.AllHeld.as_view(), name="api-all-held"),
    path("admin/prices/devices", devices.DevicePrices.as_view(), name="api-device-prices"),
    path("admin/prices/to-come/<int:price_id>", prices.PriceToCome.as_view(), name="api-price-to-come"),
    path("tenants/<slug:tenant>/limits", limits.TenantLimitsUse.as_view(), name="api-limits"),
    path("tenants/<slug:tenant>/prices", prices.TenantPrices.as_view(), name="api-tenant-prices"),
    path("admin/prices", prices.Prices.as_view(), name="api-prices"),
    path("admin/tenants/<slug:tenant>/prices/<str:endpoint>", prices.EndpointPrice.as_view(), name="api-price"),
]

from django.urls import path

from quotas.api import views

urlpatterns = [
    path("tenants/<slug:tenant>/quota", views.Quota.as_view(), name="api-quota"),
    path("admin/tenants/<slug:tenant>/quota", views.QuotaAdmin.as_view(), name="api-quota-admin"),
]

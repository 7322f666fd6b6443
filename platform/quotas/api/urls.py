from django.urls import path

from quotas.api import views

urlpatterns = [
    path("tenants/<slug:tenant>/quota", views.Quota.as_view(), name="api-quota"),
    path("admin/tenants/<slug:tenant>/quota", views.QuotaAdmin.as_view(), name="api-quota-admin"),
    path("admin/tenants/<slug:tenant>/quota/preview", views.QuotaPreview.as_view(), name="api-quota-preview"),
    path("admin/quota-groups", views.Groups.as_view(), name="api-quota-groups"),
    path("admin/quota-groups/<slug:group>", views.Group.as_view(), name="api-quota-group"),
    path("admin/quota-groups/<slug:group>/preview", views.GroupPreview.as_view(), name="api-quota-group-preview"),
]

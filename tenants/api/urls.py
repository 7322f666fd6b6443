from django.urls import path

from tenants.api import keys, views

urlpatterns = [
    path("login", views.Login.as_view(), name="api-login"),
    path("logout", views.Logout.as_view(), name="api-logout"),
    path("me", views.Me.as_view(), name="api-me"),
    path("tenants", views.Tenants.as_view(), name="api-tenants"),
    path("tenants/<slug:tenant>", views.TenantDetail.as_view(), name="api-tenant"),
    path("admin/tenants/<slug:tenant>/suspend", views.TenantSuspend.as_view(), name="api-tenant-suspend"),
    path("admin/tenants/<slug:tenant>/resume", views.TenantResume.as_view(), name="api-tenant-resume"),
    path("tenants/<slug:tenant>/members", views.Members.as_view(), name="api-members"),
    path("tenants/<slug:tenant>/members/<uuid:member_id>", views.MemberDetail.as_view(), name="api-member"),
    path("admin/tenants/<slug:tenant>/limits", views.TenantLimits.as_view(), name="api-tenant-limits"),
    path("tenants/<slug:tenant>/keys", keys.Keys.as_view(), name="api-keys"),
    path("tenants/<slug:tenant>/keys/<uuid:key_id>", keys.KeyDetail.as_view(), name="api-key"),
    path("tenants/<slug:tenant>/keys/<uuid:key_id>/rotate", keys.KeyRotate.as_view(), name="api-key-rotate"),
    path("tenants/<slug:tenant>/events", views.Events.as_view(), name="api-events"),
]

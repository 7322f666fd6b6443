from django.urls import path

from tenants.api import keys, membership, people, views

urlpatterns = [
    path("login", views.Login.as_view(), name="api-login"),
    path("logout", views.Logout.as_view(), name="api-logout"),
    path("me", views.Me.as_view(), name="api-me"),
    path("tenants", views.Tenants.as_view(), name="api-tenants"),
    path("tenants/<slug:tenant>", views.TenantDetail.as_view(), name="api-tenant"),
    path("admin/tenants/<slug:tenant>/suspend", views.TenantSuspend.as_view(), name="api-tenant-suspend"),
    path("admin/tenants/<slug:tenant>/resume", views.TenantResume.as_view(), name="api-tenant-resume"),
    path("admin/people", people.People.as_view(), name="api-people"),
    path("admin/people/<uuid:user_id>", people.PersonDetail.as_view(), name="api-person"),
    path("admin/people/<uuid:user_id>/switch-off", people.PersonSwitchOff.as_view(), name="api-person-switch-off"),
    path("admin/people/<uuid:user_id>/make-admin", people.PersonMakeAdmin.as_view(), name="api-person-make-admin"),
    path(
        "admin/people/<uuid:user_id>/unmake-admin", people.PersonUnmakeAdmin.as_view(), name="api-person-unmake-admin"
    ),
    path("admin/people/<uuid:user_id>/switch-on", people.PersonSwitchOn.as_view(), name="api-person-switch-on"),
    path("tenants/<slug:tenant>/members", views.Members.as_view(), name="api-members"),
    path("tenants/<slug:tenant>/members/<uuid:member_id>", views.MemberDetail.as_view(), name="api-member"),
    path("invitations/accept", membership.InvitationAccept.as_view(), name="api-invitation-accept"),
    path("tenants/<slug:tenant>/invitations", membership.Invitations.as_view(), name="api-invitations"),
    path(
        "tenants/<slug:tenant>/invitations/<uuid:invitation_id>",
        membership.InvitationDetail.as_view(),
        name="api-invitation",
    ),
    path(
        "tenants/<slug:tenant>/invitations/<uuid:invitation_id>/resend",
        membership.InvitationResend.as_view(),
        name="api-invitation-resend",
    ),
    path("tenants/<slug:tenant>/service-accounts", membership.ServiceAccounts.as_view(), name="api-service-accounts"),
    path(
        "tenants/<slug:tenant>/service-accounts/<uuid:account_id>",
        membership.ServiceAccountDetail.as_view(),
        name="api-service-account",
    ),
    path(
        "tenants/<slug:tenant>/service-accounts/<uuid:account_id>/disable",
        membership.ServiceAccountDisable.as_view(),
        name="api-service-account-disable",
    ),
    path(
        "tenants/<slug:tenant>/service-accounts/<uuid:account_id>/enable",
        membership.ServiceAccountEnable.as_view(),
        name="api-service-account-enable",
    ),
    path(
        "tenants/<slug:tenant>/service-accounts/<uuid:account_id>/keys",
        membership.ServiceAccountKeys.as_view(),
        name="api-service-account-keys",
    ),
    path("admin/tenants/<slug:tenant>/limits", views.TenantLimits.as_view(), name="api-tenant-limits"),
    path("tenants/<slug:tenant>/keys", keys.Keys.as_view(), name="api-keys"),
    path("tenants/<slug:tenant>/keys/<uuid:key_id>", keys.KeyDetail.as_view(), name="api-key"),
    path("tenants/<slug:tenant>/keys/<uuid:key_id>/rotate", keys.KeyRotate.as_view(), name="api-key-rotate"),
    path("tenants/<slug:tenant>/events", views.Events.as_view(), name="api-events"),
]

"""Addresses of the console. A tenant's pages lie under ``/t/<slug>/``, so links can be shared."""

from allauth.account import views as allauth
from django.urls import URLPattern, URLResolver, include, path
from django.views.generic import RedirectView

from console import preferences
from console.pages import (
    audit,
    deploy,
    deployments,
    endpoints,
    experiments,
    home,
    keys,
    members,
    models,
    platform,
    playground,
    prices,
    quotas,
    rollout_start,
    rollouts,
    settings,
    tenants,
    usage,
)

account = [
    path("login/", allauth.login, name="account_login"),
    path("logout/", allauth.logout, name="account_logout"),
    path("inactive/", allauth.account_inactive, name="account_inactive"),
    path("password/change/", allauth.password_change, name="account_change_password"),
    # Names that allauth's views refer to; both lead to a page that says whom to ask.
    path("signup/", allauth.signup, name="account_signup"),
    path("password/reset/", RedirectView.as_view(pattern_name="account_signup"), name="account_reset_password"),
]
person = [
    path("settings/", settings.account, name="account"),
    path("tokens/new/", settings.create_token, name="token-create"),
    path("tokens/<uuid:token_id>/revoke/", settings.revoke_token, name="token-revoke"),
    path("preferences/", preferences.choose, name="preferences"),
]
tenant = [
    path("", home.index, name="home"),
    path("keys/", keys.index, name="keys"),
    path("keys/new/", keys.create, name="key-create"),
    path("keys/<uuid:key_id>/edit/", keys.edit, name="key-edit"),
    path("keys/<uuid:key_id>/rotate/", keys.rotate, name="key-rotate"),
    path("keys/<uuid:key_id>/revoke/", keys.revoke, name="key-revoke"),
    path("members/", members.index, name="members"),
    path("members/add/", members.add, name="member-add"),
    path("members/<uuid:member_id>/role/", members.change, name="member-change"),
    path("members/<uuid:member_id>/remove/", members.remove, name="member-remove"),
    path("models/", models.index, name="models"),
    path("models/upload/", models.upload, name="upload"),
    path("models/<str:model>/", models.detail, name="model"),
    path("models/<str:model>/delete/", models.delete, name="model-delete"),
    path("models/<str:model>/aliases/", models.set_alias, name="alias-set"),
    path("models/<str:model>/aliases/<str:alias>/delete/", models.delete_alias, name="alias-delete"),
    path("models/<str:model>/versions/<int:number>/", models.version, name="version"),
    path("models/<str:model>/versions/<int:number>/archive/", models.archive, name="version-archive"),
    path("models/<str:model>/versions/<int:number>/delete/", models.delete_version, name="version-delete"),
    path("deployments/", deployments.index, name="deployments"),
    path("deployments/new/", deploy.form, name="deploy"),
    path("deployments/new/fit/", deploy.fit, name="deploy-fit"),
    path("deployments/<uuid:deployment_id>/", deployments.detail, name="deployment"),
    path("deployments/<uuid:deployment_id>/scale/", deployments.scale, name="deployment-scale"),
    path("deployments/<uuid:deployment_id>/stop/", deployments.stop, name="deployment-stop"),
    path("deployments/<uuid:deployment_id>/start/", deployments.start, name="deployment-start"),
    path("deployments/<uuid:deployment_id>/delete/", deployments.delete, name="deployment-delete"),
    path("deployments/<uuid:deployment_id>/endpoint/", endpoints.edit, name="endpoint-edit"),
    path("deployments/<uuid:deployment_id>/grants/", deployments.grant, name="grant"),
    path(
        "deployments/<uuid:deployment_id>/grants/<uuid:grant_id>/revoke/", deployments.revoke_grant, name="grant-revoke"
    ),
    path("deployments/<uuid:deployment_id>/<slug:tab>/", deployments.detail, name="deployment-tab"),
    path("rollouts/", rollouts.index, name="rollouts"),
    path("rollouts/new/", rollout_start.form, name="rollout-start-form"),
    path("rollouts/new/preview/", rollout_start.preview, name="rollout-preview"),
    path("rollouts/experiments/", experiments.index, name="experiments"),
    path("rollouts/experiments/new/", experiments.create, name="experiment-create"),
    path("rollouts/experiments/<uuid:experiment_id>/", experiments.detail, name="experiment"),
    path("rollouts/experiments/<uuid:experiment_id>/end/", experiments.end, name="experiment-end"),
    path("rollouts/<uuid:rollout_id>/", rollouts.detail, name="rollout"),
    path("rollouts/<uuid:rollout_id>/start/", rollouts.start, name="rollout-start"),
    path("rollouts/<uuid:rollout_id>/pause/", rollouts.pause, name="rollout-pause"),
    path("rollouts/<uuid:rollout_id>/resume/", rollouts.resume, name="rollout-resume"),
    path("rollouts/<uuid:rollout_id>/promote/", rollouts.promote, name="rollout-promote"),
    path("rollouts/<uuid:rollout_id>/roll-back/", rollouts.roll_back, name="rollout-roll-back"),
    path("rollouts/<uuid:rollout_id>/abort/", rollouts.abort, name="rollout-abort"),
    path("playground/", playground.index, name="playground"),
    path("playground/key/", playground.key, name="playground-key"),
    path("usage/", usage.index, name="usage"),
    path("audit/", audit.tenant, name="audit"),
    path("settings/", settings.tenant, name="settings"),
]
platform_pages = [
    path("", platform.overview, name="platform"),
    path("devices/", platform.devices, name="platform-devices"),
    path("devices/<uuid:device_id>/<slug:verb>/", platform.device_verb, name="platform-device-verb"),
    path("nodes/", platform.nodes, name="platform-nodes"),
    path("nodes/join/", platform.join, name="platform-join"),
    path("nodes/<uuid:node_id>/", platform.node, name="platform-node"),
    path("nodes/<uuid:node_id>/<slug:verb>/", platform.node_verb, name="platform-node-verb"),
    path("tenants/", tenants.index, name="platform-tenants"),
    path("tenants/new/", tenants.create, name="tenant-create"),
    path("tenants/<slug:slug>/quota/", quotas.quota, name="tenant-quota"),
    path("tenants/<slug:slug>/quota/preview/", quotas.preview, name="tenant-quota-preview"),
    path("tenants/<slug:slug>/limits/", tenants.limits, name="tenant-limits"),
    path("prices/", prices.index, name="platform-prices"),
    path("prices/set/", prices.change, name="price-set"),
    path("prices/<uuid:endpoint_id>/remove/", prices.remove, name="price-remove"),
    path("audit/", audit.platform, name="platform-audit"),
    path("system/", platform.system, name="platform-system"),
]
console: list[URLPattern | URLResolver] = [
    path("", settings.start, name="start"),
    path("accounts/", include(person)),
    path("t/<slug:slug>/", include(tenant)),
    path("platform/", include(platform_pages)),
]
# allauth's names are global; ours have a namespace, because REST has routes of the same names.
urlpatterns = [path("accounts/", include(account)), path("", include((console, "console")))]

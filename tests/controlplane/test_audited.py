"""Generated: every REST route that changes something writes who did it, by which way, from where, under which request.

A new route fails here until it says how it is called, or that it changes nothing.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.db import transaction
from django.urls import URLPattern, URLResolver, get_resolver

from catalog.models import Model
from fleet.models import Node
from kernel import scope
from ledger.models import AuditEvent
from tenants import invitations, services
from tenants.models import Tenant, User
from tenants.roles import Role
from tests.build.befores import BEFORE
from tests.build.controlplane import PASSWORD, actor_for, client_for, make_member, make_user, owner_of
from tests.build.world import make_world
from tests.controlplane.test_isolation import CONVERTER, PREFIX

pytestmark = pytest.mark.django_db
MUTATING = ("post", "put", "patch", "delete")
REASON = {"reason": "Because."}
MESSAGE = {"message": "Because."}

# (route, method) → body. Names in braces are the world's.
CALLS: dict[tuple[str, str], dict[str, Any]] = {
    ("api-login", "post"): {"email": "{owner}", "password": "correct horse battery"},
    ("api-logout", "post"): {},
    ("api-tenants", "post"): {"slug": "brand-new"},
    ("api-tenant-suspend", "post"): REASON,
    ("api-tenant-resume", "post"): {},
    ("api-tenant-limits", "patch"): {"rpm_limit": 7},
    ("api-members", "post"): {"email": "{viewer}", "role": "developer"},
    ("api-member", "delete"): {},
    ("api-invitation-accept", "post"): {"token": "{token}"},
    ("api-invitations", "post"): {"email": "new@guest.example", "role": "viewer"},
    ("api-invitation", "delete"): {},
    ("api-service-accounts", "post"): {"name": "another", "role": "viewer"},
    ("api-service-account", "patch"): {"role": "viewer"},
    ("api-service-account", "delete"): {},
    ("api-service-account-disable", "post"): {},
    ("api-service-account-enable", "post"): {},
    ("api-service-account-keys", "post"): {"name": "k"},
    ("api-keys", "post"): {"name": "k"},
    ("api-key", "patch"): {"rpm_limit": 3},
    ("api-key-rotate", "post"): {},
    ("api-key-revoke", "post"): {},
    ("models", "post"): {"name": "another-model"},
    ("versions", "post"): {"files": [{"path": "config.json", "size": 2, "sha256": "0" * 64}]},
    ("alias", "put"): {"version": 1},
    ("alias", "delete"): {},
    ("node-tokens", "post"): {"name": "n2"},
    ("node-cordon", "post"): {},
    ("node-drain", "post"): {"accept_gap": True},
    ("node-fault-domain", "post"): {"name": "rack-7"},
    ("node-remove", "post"): {},
    ("device-retire", "post"): MESSAGE,
    ("device-quarantine", "post"): MESSAGE,
    ("api-quota-admin", "put"): {"replicas": 3},
    ("api-quota-group", "put"): {"replicas": 3},
    ("endpoints", "post"): {"name": "another-endpoint"},
    ("endpoint", "patch"): {"slo": {"error_rate": 0.01}},
    ("grants", "post"): {"tenant": "somebody"},
    ("grant", "delete"): {},
    ("deployment", "patch"): {"replicas": 2},
    ("deployment", "delete"): {},
    ("deployment-stop", "post"): {},
    ("gateway-remove", "post"): {},
    ("api-person-switch-off", "post"): {},
    ("api-person-switch-on", "post"): {},
    ("api-person-make-admin", "post"): {"password": PASSWORD},
    ("api-person-unmake-admin", "post"): {"password": PASSWORD},
    ("api-invitation-resend", "post"): {},
    ("model", "delete"): {},
    ("version", "delete"): {},
    ("version-archive", "post"): {},
    ("node-uncordon", "post"): {},
    ("device-return", "post"): MESSAGE,
    ("tenant-isolation", "put"): {"isolation": "mps"},
    ("api-quota-group", "delete"): {},
    ("endpoint", "delete"): {},
    ("deployments", "post"): {"endpoint": "another", "model": "{model}", "version": "1"},
    ("deployment-start", "post"): {},
    ("endpoint-rollouts", "post"): {"model": "{model}", "version": "2", "shares": [50, 100]},
    ("rollout-start", "post"): {},
    ("rollout-pause", "post"): {},
    ("rollout-resume", "post"): {},
    ("rollout-promote", "post"): {},
    ("rollout-roll-back", "post"): {},
    ("rollout-abort", "post"): {},
    ("experiments", "post"): {"endpoint": "{endpoint}", "name": "x", "candidate": "{candidate}", "share": 100},
    ("experiment-end", "post"): {},
    ("api-device-prices", "put"): {"per_hour": "2.5"},
    ("api-price-to-come", "delete"): {},
    ("api-prices", "put"): {"prompt": "1", "completion": "2"},
    ("api-price", "put"): {"prompt": "1", "completion": "2"},
    ("api-price", "delete"): {},
}
CHANGES_NOTHING = {
    "evaluations", "fit", "rollout-preview", "api-quota-preview", "api-quota-group-preview", "layout-proposals",
}  # fmt: skip
# What these need first (files that have arrived, a MIG device, a price at a certain hour) is built where they are
# tested; their services are the same that write the event there.
NEED_MORE = {"version-finalize", "device-layout", "device-layout-rollback"}
ALSO_NEED_MORE = {("api-device-prices", "delete")}
OF_ADMINS = (
    "api-tenant-", "api-tenants", "node-", "device-", "api-quota", "gateway-", "api-person", "api-price",
    "api-device-prices",
)  # fmt: skip


def _patterns(resolver: Any = None, prefix: str = "") -> Iterator[tuple[str, str, type]]:
    for entry in (resolver or get_resolver()).url_patterns:
        path = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from _patterns(entry, path)
        elif isinstance(entry, URLPattern) and path.startswith(PREFIX):
            yield str(entry.name), path, entry.callback.view_class  # type: ignore[attr-defined]


def routes() -> dict[tuple[str, str], str]:
    """(name, method) → path of every route that takes a changing method."""
    return {(name, method): path for name, path, view in _patterns() for method in MUTATING if hasattr(view, method)}


def test_every_route_says_how_it_is_called() -> None:
    unknown = [
        route
        for route in routes()
        if route not in CALLS and route not in ALSO_NEED_MORE and route[0] not in CHANGES_NOTHING | NEED_MORE
    ]
    assert not unknown
    assert len(CALLS) >= 70


def _filled(value: Any, facts: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {name: _filled(one, facts) for name, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, facts) for one in value]
    return value.format(**facts) if isinstance(value, str) else value


def test_every_change_says_who_how_where_and_under_which_request() -> None:
    cache.clear()
    tenant, values = make_world()
    owner, admin, guest = owner_of(tenant), make_user(admin=True), make_user("invited@guest.example")
    _row, link = invitations.invite(actor=actor_for(owner), tenant=tenant, email=guest.email, role=Role.VIEWER)
    facts = {
        "owner": owner.email, "viewer": make_member(tenant, Role.VIEWER).email, "tenant": tenant.slug,
        "token": link.rstrip("/").rpartition("/")[2],
        "model": Model._base_manager.get(id=values["model"]).name,
    }  # fmt: skip
    values["model_name"] = facts["model"]
    wrong = []
    for number, ((name, method), path) in enumerate(routes().items()):
        if (name, method) not in CALLS:
            continue
        with transaction.atomic():
            who = guest if name == "api-invitation-accept" else owner
            who = admin if name.startswith(OF_ADMINS) else who
            changed = {**values, **BEFORE.get((name, method), _nothing)(tenant, values)}
            status, seen = _call(name, method, path, tenant, changed, {**changed, **facts}, who, f"request-{number:06}")
            if not 200 <= status < 300 or not seen:
                wrong.append((name, method, status, seen))
            transaction.set_rollback(True)
    assert not wrong


def _nothing(_tenant: Tenant, _values: dict[str, Any]) -> dict[str, Any]:
    return {}


def _call(
    name: str, method: str, path: str, tenant: Tenant, values: dict[str, Any], facts: dict[str, Any], who: Any, rid: str
) -> tuple[int, bool]:
    """The answer's status, and whether an event of the caller stands under the request's id."""
    if name == "api-tenant-resume":
        services.suspend_tenant(actor=actor_for(make_user(admin=True)), tenant=tenant, reason="x")
    if name == "api-service-account-enable":
        base = f"/api/v1/tenants/{tenant.slug}/service-accounts"
        client_for(owner_of(tenant)).post(f"{base}/{values['account_id']}/disable")
    if name == "api-person-switch-on":
        User.objects.filter(id=values["user_id"]).update(is_active=False)
    if name == "api-person-unmake-admin":
        User.objects.filter(id=values["user_id"]).update(is_staff=True)
    if name in ("node-cordon", "node-drain"):
        Node.objects.update(state="ready")
    url = "/" + CONVERTER.sub(lambda match: str({"tenant": tenant.slug, **values}[match[1]]), path)
    body = _filled(CALLS[name, method], facts)
    answer = getattr(client_for(who), method)(url, body, format="json", HTTP_X_REQUEST_ID=rid)
    with scope.all_tenants():
        events = AuditEvent.objects.filter(
            request_id=rid, address="127.0.0.1", way="api", actor_kind="user", actor_label=who.email
        )
        return answer.status_code, events.exists()

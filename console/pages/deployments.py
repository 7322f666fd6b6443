"""Deployments: the list, and one with its replicas, what limits it, metrics, events, logs, access and acts."""

import uuid
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _

from console import keyset, queries
from console.pages import deployment_parts as parts
from console.presenters import audit, comparison, deployments, needs, samples
from console.presenters import rollouts as rollout_words
from console.web import Here, Undo, done, refused, tenant_page
from fleet import gateways, policy
from kernel import errors
from kernel.isolation import strictest
from rollouts import selectors as rollouts
from serving import access, events, selectors, services
from serving.models import Deployment, Priority
from serving.states import DeploymentState
from telemetry import series
from tenants.roles import Permission

EVENTS = 12
PER_PAGE = 40
RANGES = (15, 60, 120)
TABS = ("overview", "metrics", "logs", "events", "configuration", "access", "api")


@tenant_page
def index(request: HttpRequest, here: Here) -> HttpResponse:
    """Every deployment with its level."""
    wanted = request.GET.get("q", "").strip()
    found = selectors.deployments_of(here.tenant)
    if wanted:
        found = found.filter(Q(endpoint__name__icontains=wanted) | Q(revision__model__name__icontains=wanted))
    pages = keyset.page(request, found, PER_PAGE, {"q": wanted})
    context = {
        "rows": [_row(deployment) for deployment in pages.rows],
        "keyset": pages,
        "wanted": wanted,
        "granted": selectors.granted_endpoints(here.tenant),
        "may_deploy": here.can(Permission.DEPLOY),
    }
    return render(request, "console/pages/deployments.html", context)


def _row(deployment: Deployment) -> dict[str, Any]:
    health = selectors.health_of(deployment)
    replicas = [row for row in deployment.replicas.all() if row.state != "stopped"]
    return {
        "deployment": deployment,
        "health": health,
        "said": deployments.sentence(health.word, health.ready, deployment.desired_replicas),
        "memory": queries.holding(replicas).memory,
        "sums": parts.sums(replicas),
    }


@tenant_page
def detail(request: HttpRequest, here: Here, deployment_id: uuid.UUID, tab: str = "overview") -> HttpResponse:
    """One deployment."""
    if tab not in TABS:
        raise errors.NotFound(_("There is no such page."))
    found = access.access_deployment(here.actor, here.tenant, deployment_id)
    whole = selectors.deployment_detail(found)
    live = [placed for placed in whole.replicas if placed.replica.state != "stopped"]
    context: dict[str, Any] = {
        "deployment": found,
        "revision": found.revision,
        "config": found.revision.serving_config,
        "required": strictest(
            found.revision.serving_config.isolation,
            found.revision.version.isolation,
            policy.policy_of(here.tenant).least,
        ),
        "health": whole.health,
        "trouble": whole.health.word in needs.TROUBLE and whole.health.sentence != needs.WAITING,
        "said": deployments.sentence(whole.health.word, whole.health.ready, found.desired_replicas),
        "conditions": deployments.conditions(whole.health.conditions),
        "replicas": [parts.replica_line(placed) for placed in live],
        "gone": [parts.replica_line(placed) for placed in whole.replicas if placed.replica.state == "stopped"][:10],
        "tab": tab,
        "may_deploy": here.can(Permission.DEPLOY),
        "may_grant": here.can(Permission.GRANT),
        "may_infer": here.can(Permission.INFER),
        "callable": found.endpoint.name,
        "total": max((line["memory"].total for line in map(parts.replica_line, live) if line["memory"]), default=0),
    }
    context["rollout"] = rollouts.active_rollout(found.endpoint)
    if context["rollout"] is not None:
        context["rollout_word"] = rollout_words.state_word(context["rollout"])
    context |= _tab(request, here, found, whole, tab)
    return render(request, "console/pages/deployment.html", context)


def _tab(request: HttpRequest, here: Here, found: Any, whole: Any, tab: str) -> dict[str, Any]:
    """What one tab needs beside the head."""
    context: dict[str, Any] = {}
    if tab in ("overview", "metrics"):
        text = request.GET.get("minutes", "")
        minutes = int(text) if text.isascii() and text.isdigit() and int(text) in RANGES else 60
        ids = [placed.replica.id for placed in whole.replicas][: series.MAX_REPLICAS]
        context |= {
            "charts": parts.charts(series.series(ids, minutes), found.endpoint.slo),
            "minutes": minutes,
            "ranges": RANGES,
        }
        here_ids = {str(placed.replica.id): placed.replica.short_id for placed in whole.replicas}
        context["avoided"] = [
            (here_ids[one.replica_id], one) for one in gateways.avoided() if one.replica_id in here_ids
        ]
        context["working_point"] = gateways.working_point(found.id)
        context["bottleneck"] = parts.bottleneck([placed.replica for placed in whole.replicas])
    if tab in ("overview", "events"):
        limit = EVENTS if tab == "overview" else 100
        context["lines"] = [audit.line(event) for event in events.events_of(found)[:limit]]
    if tab in ("overview", "logs"):
        context["logs"] = parts.logs([placed.replica for placed in whole.replicas], request.GET.get("replica", ""))
        context["log_replica"] = request.GET.get("replica", "")
    if tab == "configuration":
        mine = queries.made_of(found.revision)
        context["beside"] = [
            (other, comparison.changes(queries.made_of(other.revision), mine)) for other in queries.beside(found)
        ]
    if tab == "access":
        context["grants"] = selectors.grants_of(found.endpoint)
    if tab == "api":
        context["samples"] = samples.chat(settings.GATEWAY_URL, found.endpoint.name)
        context["acts"] = _as_code(here, found)
    return context


def _as_code(here: Here, found: Any) -> list[samples.Sample]:
    path = f"/tenants/{here.tenant.slug}/deployments/{found.id}"
    name = found.endpoint.name
    lines = [
        samples.command("status", name).text,
        samples.command("scale", name, str(found.desired_replicas)).text,
        samples.command("stop", name).text,
        samples.command("start", name).text,
        samples.command("logs", name).text,
    ]
    return [
        samples.Sample("CLI", "\n".join(lines)),
        samples.rest(settings.PUBLIC_URL, "PATCH", path, {"replicas": found.desired_replicas}),
    ]


@tenant_page(get=Permission.DEPLOY, post=Permission.DEPLOY)
def scale(request: HttpRequest, here: Here, deployment_id: uuid.UUID) -> HttpResponse:
    """The dialog and the act."""
    found = access.access_deployment(here.actor, here.tenant, deployment_id, Permission.DEPLOY)
    if request.method != "POST":
        context = {"deployment": found, "priorities": Priority.choices}
        return render(request, "console/pages/deployment_scale.html", context)
    texts = {name: request.POST.get(name, "").strip() for name in ("replicas", "weight")}
    if not all(text.isascii() and text.isdigit() and len(text) < 6 for text in texts.values()):
        return refused(
            request, errors.InvalidInput(_("Replicas and share are whole numbers.")), _page(here, deployment_id)
        )
    try:
        services.scale(
            actor=here.actor, tenant=here.tenant, deployment=found,
            replicas=int(texts["replicas"]), weight=int(texts["weight"]), priority=request.POST.get("priority") or None,
        )  # fmt: skip
    except errors.PlatformError as exc:
        return refused(request, exc, _page(here, deployment_id))
    text = _("%(name)s wants %(count)s replicas now.") % {"name": found.endpoint.name, "count": texts["replicas"]}
    return done(request, text, _page(here, deployment_id), _scaled_back(request, found, texts))


def _scaled_back(request: HttpRequest, before: Deployment, texts: dict[str, str]) -> Undo | None:
    was = {"replicas": str(before.desired_replicas), "weight": str(before.weight), "priority": before.priority}
    now = {name: str(int(text)) for name, text in texts.items()}
    now["priority"] = request.POST.get("priority") or before.priority
    return Undo(request.path, was) if was != now else None


def _verb(verb: Callable[..., Any], template: str, said: str) -> Any:
    @tenant_page(get=Permission.DEPLOY, post=Permission.DEPLOY)
    def view(request: HttpRequest, here: Here, deployment_id: uuid.UUID) -> HttpResponse:
        found = access.access_deployment(here.actor, here.tenant, deployment_id, Permission.DEPLOY)
        if request.method != "POST":
            running = sum(1 for row in selectors.replicas_of(found) if row.state not in ("stopped", "pending"))
            return render(request, template, {"deployment": found, "running": running})
        if verb is services.delete_deployment and request.POST.get("name", "").strip() != found.endpoint.name:
            return refused(request, errors.InvalidInput(_("The name does not match.")), _page(here, deployment_id))
        try:
            verb(actor=here.actor, tenant=here.tenant, deployment=found)
        except errors.PlatformError as exc:
            return refused(request, exc, _page(here, deployment_id))
        is_deleted = verb is services.delete_deployment
        to = (
            reverse("console:deployments", kwargs={"slug": here.tenant.slug})
            if is_deleted
            else _page(here, deployment_id)
        )
        undo = None
        if verb is services.stop and found.state == DeploymentState.RUNNING:
            kwargs = {"slug": here.tenant.slug, "deployment_id": deployment_id}
            undo = Undo(reverse("console:deployment-start", kwargs=kwargs))
        return done(request, _(said) % {"name": found.endpoint.name}, to, undo)

    return view


stop = _verb(services.stop, "console/pages/deployment_stop.html", "%(name)s finishes its requests and stops.")
start = _verb(services.start, "console/pages/deployment_start.html", "%(name)s starts.")
delete = _verb(
    services.delete_deployment, "console/pages/deployment_delete.html", "The deployment of %(name)s is being deleted."
)


def _said_for_gettext() -> tuple[str, ...]:
    """The sentences above, where the extraction of texts finds them."""
    return (
        _("%(name)s finishes its requests and stops."),
        _("%(name)s starts."),
        _("The deployment of %(name)s is being deleted."),
    )


@tenant_page(post=Permission.GRANT)
def grant(request: HttpRequest, here: Here, deployment_id: uuid.UUID) -> HttpResponse:
    """Let another tenant call the endpoint."""
    found = access.access_deployment(here.actor, here.tenant, deployment_id)
    back = _page(here, deployment_id, "access")
    slug = request.POST.get("tenant", "").strip().lower()
    try:
        services.grant(actor=here.actor, tenant=here.tenant, endpoint=found.endpoint, to=slug)
    except errors.PlatformError as exc:
        return refused(request, exc, back)
    text = _("%(tenant)s may call %(name)s now.") % {
        "tenant": slug,
        "name": f"{here.tenant.slug}/{found.endpoint.name}",
    }
    return done(request, text, back)


@tenant_page(post=Permission.GRANT)
def revoke_grant(request: HttpRequest, here: Here, deployment_id: uuid.UUID, grant_id: uuid.UUID) -> HttpResponse:
    """Take the grant back."""
    found = access.access_deployment(here.actor, here.tenant, deployment_id)
    back = _page(here, deployment_id, "access")
    given = access.access_grant(here.actor, here.tenant, found.endpoint, grant_id, Permission.GRANT)
    try:
        services.revoke_grant(actor=here.actor, tenant=here.tenant, grant=given)
    except errors.PlatformError as exc:
        return refused(request, exc, back)
    return done(request, _("%(tenant)s may not call it any more.") % {"tenant": given.tenant_slug}, back)


def _page(here: Here, deployment_id: uuid.UUID, tab: str = "") -> str:
    kwargs: dict[str, Any] = {"slug": here.tenant.slug, "deployment_id": deployment_id}
    return (
        reverse("console:deployment-tab", kwargs={**kwargs, "tab": tab})
        if tab
        else reverse("console:deployment", kwargs=kwargs)
    )

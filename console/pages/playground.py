"""The playground: a chat that calls the gateway like any application, with a key that lives for minutes."""

import dataclasses
from collections import Counter

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from console.web import Here, tenant_page
from dispatch import revocation
from ledger import generations
from serving import selectors
from serving.models import Deployment
from serving.selectors import CallableEndpoint
from serving.states import DeploymentState
from tenants import services
from tenants.roles import Permission


@dataclasses.dataclass(frozen=True)
class Side:
    """What can be asked: an endpoint as its callers are served, or one of its revisions (``share``: of the traffic).

    ``revision`` is the gateway's name for it (the header ``x-millpond-revision``).
    """

    model: str
    is_ready: bool
    revision: str = ""
    version: int = 0
    share: float = 0.0

    @property
    def value(self) -> str:
        """How addresses and forms call it."""
        return f"{self.model}@{self.revision}" if self.revision else self.model

    @property
    def label(self) -> str:
        """What people read."""
        if not self.revision:
            return self.model
        words = {"model": self.model, "name": self.revision, "version": self.version}
        if not self.share:
            return _("%(model)s, %(name)s (v%(version)s, no share)") % words
        return _("%(model)s, %(name)s (v%(version)s, %(share)s %%)") % {**words, "share": f"{self.share * 100:.3g}"}


@tenant_page(get=Permission.INFER)
def index(request: HttpRequest, here: Here) -> HttpResponse:
    """The chat; ``?model=`` and ``?with=`` choose what is asked (``chat``, or ``chat@r7`` for one revision of it)."""
    offered = selectors.callable_endpoints(here.tenant)
    deploys = here.can(Permission.DEPLOY)
    sides = [side for item in offered for side in _sides(item, with_revisions=deploys and item.own)]
    ready = {side.value for side in sides if side.is_ready}
    wanted, other = request.GET.get("model", ""), request.GET.get("with", "")
    known = {side.value for side in sides}
    context = {
        "sides": sides,
        "chosen": wanted if wanted in known else next((side.value for side in sides if side.is_ready), ""),
        "other": other if other in ready else "",
        "has_revisions": any(side.revision for side in sides),
        "is_any_ready": bool(ready),
    }
    return render(request, "console/pages/playground.html", context)


def _sides(item: CallableEndpoint, *, with_revisions: bool) -> list[Side]:
    """The endpoint, then its revisions where there is a choice among them."""
    found = [Side(item.model, bool(item.health.ready))]
    running = [row for row in item.endpoint.deployments.all() if row.state == DeploymentState.RUNNING]
    if not with_revisions or len(running) < 2:
        return found
    numbers = Counter(row.revision.number for row in running)
    weights = sum(row.weight for row in running)
    for row in running:
        name = _name(row) if numbers[row.revision.number] == 1 else str(row.id)
        share = row.weight / weights if weights else 0.0
        is_ready = bool(selectors.health_of(row).ready)
        found.append(Side(item.model, is_ready, revision=name, version=row.revision.version.number, share=share))
    return found


def _name(row: Deployment) -> str:
    """As gateways call a revision; where two deployments have the same, their ids tell them apart."""
    return f"r{row.revision.number}"


@never_cache
@tenant_page(get=Permission.INFER, post=Permission.INFER)
def key(request: HttpRequest, here: Here) -> HttpResponse:
    """A short-lived key for the visitor's own chat; it is held in the page's memory and nowhere else."""
    if request.method != "POST":
        return HttpResponse(status=405, headers={"Allow": "POST"})
    row, text = services.mint_playground_key(actor=here.actor, tenant=here.tenant)
    revocation.wait(generations.current(generations.ROUTES))  # the page calls at once: gateways should know the key
    assert row.expires_at is not None
    return JsonResponse({"key": text, "expires_at": row.expires_at.isoformat(), "gateway": settings.GATEWAY_URL})

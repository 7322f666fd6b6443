"""The playground: a chat that calls the gateway like any application, with a key that lives for minutes."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache

from console.web import Here, tenant_page
from dispatch import revocation
from ledger import generations
from serving import selectors
from tenants import services
from tenants.roles import Permission


@tenant_page(get=Permission.INFER)
def index(request: HttpRequest, here: Here) -> HttpResponse:
    """The chat."""
    offered = selectors.callable_endpoints(here.tenant)
    wanted = request.GET.get("model", "")
    serving = [item for item in offered if item.health.ready]
    chosen = next((item.model for item in offered if item.model == wanted), serving[0].model if serving else "")
    return render(
        request, "console/pages/playground.html", {"offered": offered, "chosen": chosen, "is_any_ready": bool(serving)}
    )


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

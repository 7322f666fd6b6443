"""What tokens cost: one price for all endpoints, and prices of single endpoints that stand instead of it."""

import dataclasses
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from django.db import transaction

from kernel import clock, errors, scope
from kernel.actors import Actor
from ledger import generations
from ledger.record import record
from metering.models import Price
from serving.models import Endpoint
from tenants import access

MAX_PRICE: Final = 10**12
MILLION: Final = Decimal(1_000_000)


def money(millionths: Decimal | int) -> Decimal:
    """An amount of the currency, to its sixth place."""
    return (Decimal(millionths) / MILLION).quantize(Decimal("0.000001"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenPrices:
    """Millionths of the currency for one million tokens of each kind."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def cost(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> Decimal:
        """Millionths of the currency, exact; ``prompt_tokens`` contains the cached ones."""
        cached = min(cached_tokens, prompt_tokens)
        fresh = prompt_tokens - cached
        return Decimal(fresh * self.prompt + cached * self.cached + completion_tokens * self.completion) / MILLION


@dataclasses.dataclass(frozen=True)
class PriceList:
    """All prices at one moment."""

    default: TokenPrices
    by_endpoint: Mapping[uuid.UUID, TokenPrices]

    def of(self, endpoint_id: uuid.UUID) -> TokenPrices:
        """The endpoint's own price, or the one for all."""
        return self.by_endpoint.get(endpoint_id, self.default)


def current() -> PriceList:
    """The prices now, in one query."""
    rows = {
        row.endpoint_id: TokenPrices(prompt=row.prompt, cached=row.cached, completion=row.completion)
        for row in Price.objects.all()
    }
    default = rows.pop(None, TokenPrices())
    return PriceList(default, {ident: price for ident, price in rows.items() if ident is not None})


def set_price(*, actor: Actor, endpoint: Endpoint | None, price: TokenPrices) -> Price:
    """Charge ``price`` from now on, for ``endpoint`` or for all that have no price of their own. Platform admins only.

    What is booked already keeps its cost.
    """
    access.require_platform_admin(actor)
    for name in ("prompt", "cached", "completion"):
        if not 0 <= getattr(price, name) <= MAX_PRICE:
            raise errors.InvalidInput(f"The price of {name} tokens is from 0 to {MAX_PRICE}.", data={"field": name})
    with transaction.atomic():
        row, _created = Price.objects.update_or_create(
            endpoint_id=endpoint.id if endpoint else None,
            defaults={**dataclasses.asdict(price), "changed_at": clock.now()},
        )
        _note(actor, endpoint, "price.set", dataclasses.asdict(price))
    return row


def remove_price(*, actor: Actor, endpoint: Endpoint) -> None:
    """Charge what all pay again."""
    access.require_platform_admin(actor)
    with transaction.atomic():
        if not Price.objects.filter(endpoint_id=endpoint.id).delete()[0]:
            raise errors.NotFound(f"{endpoint.name!r} has no price of its own.", code="price_not_found")
        _note(actor, endpoint, "price.removed", {})


def _note(actor: Actor, endpoint: Endpoint | None, action: str, data: Mapping[str, int]) -> None:
    record(
        actor=actor,
        action=action,
        subject_kind="price",
        subject_id=endpoint.id if endpoint else "default",
        tenant_id=endpoint.tenant_id if endpoint else None,
        subject_label=endpoint.name if endpoint else "all endpoints",
        data=data,
    )
    generations.bump(generations.ROUTES)


def priced_endpoints() -> list[tuple[Endpoint, TokenPrices]]:
    """Every endpoint that has a price of its own, by tenant and name; what is deleted is left out."""
    own = current().by_endpoint
    with scope.all_tenants():
        rows = Endpoint.objects.select_related("tenant").filter(id__in=own).order_by("tenant__slug", "name")
        return [(row, own[row.id]) for row in rows]


def endpoint_for_pricing(actor: Actor, tenant_slug: str, name: str) -> Endpoint:
    """Any tenant's endpoint, for a platform admin."""
    access.require_platform_admin(actor)
    tenant = access.access_tenant(actor, tenant_slug)
    with scope.tenant(tenant.id):
        found = Endpoint.objects.filter(name=name).first()
    if found is None:
        raise errors.NotFound(f"Tenant {tenant_slug!r} has no endpoint {name!r}.", code="endpoint_not_found")
    return found

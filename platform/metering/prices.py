"""What tokens cost: one price for all endpoints, and prices of single ones that stand instead; each from a date on."""

import bisect
import dataclasses
import datetime
import uuid
from collections.abc import Iterable, Mapping
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
#: Price changes that are kept for one endpoint; more is a mistake of a script.
MOST_CHANGES: Final = 1000


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


class PriceBook:
    """Every price with the time from which it holds; asked for the moment at which a request began."""

    def __init__(self, rows: Iterable[Price]) -> None:
        self._rows = sorted(rows, key=lambda row: row.valid_from)
        self._times = [row.valid_from for row in self._rows]
        self._lists: dict[int, PriceList] = {}

    def at(self, moment: datetime.datetime) -> PriceList:
        """The prices that hold at ``moment``."""
        count = bisect.bisect_right(self._times, moment)
        if count not in self._lists:
            self._lists[count] = _listed(self._rows[:count])
        return self._lists[count]

    def after(self, moment: datetime.datetime) -> list[Price]:
        """What is set for later, the next first."""
        return self._rows[bisect.bisect_right(self._times, moment) :]


def _listed(rows: Iterable[Price]) -> PriceList:
    known: dict[uuid.UUID | None, TokenPrices] = {}
    for row in rows:
        if row.own:
            known[row.endpoint_id] = TokenPrices(prompt=row.prompt, cached=row.cached, completion=row.completion)
        else:
            known.pop(row.endpoint_id, None)
    default = known.pop(None, TokenPrices())
    return PriceList(default, {ident: price for ident, price in known.items() if ident is not None})


def book() -> PriceBook:
    """All prices, in one query."""
    return PriceBook(Price.objects.all())


def current() -> PriceList:
    """The prices now, in one query."""
    now = clock.now()
    return PriceBook(Price.objects.filter(valid_from__lte=now)).at(now)


def set_price(
    *,
    actor: Actor,
    endpoint: Endpoint | None,
    price: TokenPrices | None,
    valid_from: datetime.datetime | None = None,
) -> Price:
    """Charge ``price`` from ``valid_from`` on (now, or later), for ``endpoint`` or for all others.

    ``None`` as price: the endpoint costs what all cost again. Platform admins only. What is booked keeps its cost.

    Raises:
        InvalidInput: the time is over, the price cannot be, or too many changes of one endpoint are kept.
    """
    access.require_platform_admin(actor)
    now = clock.now()
    start = now if valid_from is None else valid_from
    if start < now:
        raise errors.InvalidInput(
            "A price begins now or later: what was used before has its cost.", code="price_start_invalid",
            data={"field": "valid_from"},
        )  # fmt: skip
    amounts = dataclasses.asdict(price or TokenPrices())
    for name, amount in amounts.items():
        if not 0 <= amount <= MAX_PRICE:
            raise errors.InvalidInput(f"The price of {name} tokens is from 0 to {MAX_PRICE}.", data={"field": name})
    ident = endpoint.id if endpoint else None
    with transaction.atomic():
        if Price.objects.filter(endpoint_id=ident).count() >= MOST_CHANGES:
            raise errors.InvalidInput("There are too many price changes; remove some that are to come.")
        values = {**amounts, "own": price is not None, "changed_at": now, "announced": start <= now}
        row, _created = Price.objects.update_or_create(endpoint_id=ident, valid_from=start, defaults=values)
        if price is None:
            _note(actor, endpoint, "price.removed", {})
        else:
            later = {} if start <= now else {"valid_from": start.isoformat()}
            _note(actor, endpoint, "price.set", {**amounts, **later})
    return row


def remove_price(*, actor: Actor, endpoint: Endpoint) -> None:
    """Charge what all pay again, from now on; prices of the endpoint that are set for later go as well."""
    access.require_platform_admin(actor)
    with transaction.atomic():
        later = Price.objects.filter(endpoint_id=endpoint.id, valid_from__gt=clock.now()).delete()[0]
        if endpoint.id in current().by_endpoint:
            set_price(actor=actor, endpoint=endpoint, price=None)
        elif not later:
            raise errors.NotFound(f"{endpoint.name!r} has no price of its own.", code="price_not_found")
        else:
            _note(actor, endpoint, "price.removed", {})


def withdraw(*, actor: Actor, price_id: int) -> None:
    """Take back a price that is set for later. Platform admins only.

    Raises:
        NotFound: there is none, or it holds already.
    """
    access.require_platform_admin(actor)
    with transaction.atomic(), scope.all_tenants():
        row = Price.objects.select_for_update().filter(id=price_id, valid_from__gt=clock.now()).first()
        if row is None:
            raise errors.NotFound("No such price is set for later.", code="price_not_found")
        row.delete()
        endpoint = Endpoint.objects.filter(id=row.endpoint_id).first() if row.endpoint_id else None
        _note(actor, endpoint, "price.withdrawn", {"valid_from": row.valid_from.isoformat()})


def announce() -> int:
    """Prices whose time has come: the route table moves, so that gateways know them. Return how many there were."""
    with transaction.atomic():
        come = Price.objects.filter(announced=False, valid_from__lte=clock.now()).update(announced=True)
        if come:
            generations.bump(generations.ROUTES)
    return come


def to_come() -> list[tuple[Endpoint | None, Price]]:
    """Prices that are set for later, the next first; of deleted endpoints left out."""
    rows = list(Price.objects.filter(valid_from__gt=clock.now()).order_by("valid_from", "id"))
    with scope.all_tenants():
        known = {row.id: row for row in Endpoint.objects.select_related("tenant").filter(
            id__in=[row.endpoint_id for row in rows if row.endpoint_id]
        )}  # fmt: skip
    return [
        (known.get(row.endpoint_id) if row.endpoint_id else None, row)
        for row in rows
        if row.endpoint_id is None or row.endpoint_id in known
    ]


def _note(actor: Actor, endpoint: Endpoint | None, action: str, data: Mapping[str, int | str]) -> None:
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

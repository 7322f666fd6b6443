"""What holding a device costs: one price for all, prices of single device types, each from a date on."""

import bisect
import datetime
from collections.abc import Mapping
from decimal import Decimal
from typing import Final, NamedTuple

from django.db import transaction

from fleet.models import Device
from kernel import clock, errors
from kernel.actors import Actor
from ledger.record import record
from metering.models import DevicePrice
from metering.periods import HOUR, hour_of
from metering.prices import MAX_PRICE
from tenants import access

_SECONDS: Final = 3600
#: Price changes that are kept for one device type; more is a mistake of a script.
MOST_CHANGES: Final = 1000


class DevicePriceList(NamedTuple):
    """Millionths of the currency for a device and an hour, at one moment. ``default`` is for types without a price."""

    default: int
    by_product: Mapping[str, int]

    def of(self, product: str) -> int:
        """The price of a device type."""
        return self.by_product.get(product, self.default)

    def cost(self, product: str, seconds: float) -> Decimal:
        """Millionths of the currency for so many device-seconds, to the sixth place below."""
        return (Decimal(self.of(product)) * Decimal(repr(seconds)) / _SECONDS).quantize(Decimal("0.000001"))


class Change(NamedTuple):
    """From ``valid_from`` on, ``product`` costs ``per_hour``; ``None``: what all cost."""

    product: str
    valid_from: datetime.datetime
    per_hour: int | None


class DevicePriceBook:
    """Every price with the time from which it holds."""

    def __init__(self, changes: list[Change]) -> None:
        self._changes = sorted(changes, key=lambda change: (change.valid_from, change.product))
        self._times = [change.valid_from for change in self._changes]

    def at(self, moment: datetime.datetime) -> DevicePriceList:
        """The prices that hold at ``moment``."""
        known: dict[str, int] = {}
        for change in self._changes[: bisect.bisect_right(self._times, moment)]:
            if change.per_hour is None:
                known.pop(change.product, None)
            else:
                known[change.product] = change.per_hour
        return DevicePriceList(known.pop("", 0), known)

    def after(self, moment: datetime.datetime) -> list[Change]:
        """What is set for later, the next first."""
        return self._changes[bisect.bisect_right(self._times, moment) :]


def book() -> DevicePriceBook:
    """All prices, in one query."""
    rows = DevicePrice.objects.values_list("product", "valid_from", "own", "per_hour")
    return DevicePriceBook([Change(product, start, price if own else None) for product, start, own, price in rows])


def set_price(
    *, actor: Actor, product: str, per_hour: int | None, valid_from: datetime.datetime | None = None
) -> DevicePrice:
    """Charge ``per_hour`` (millionths; ``None``: what all cost) for ``product`` ("" for all) from an hour on.

    Without ``valid_from`` from the next hour: what is in the books keeps its cost. Platform admins only.

    Raises:
        InvalidInput: the time is not a whole hour to come, no such device was ever here, or too many changes.
    """
    access.require_platform_admin(actor)
    now = clock.now()
    start = hour_of(now) + HOUR if valid_from is None else valid_from
    if start != hour_of(start) or start <= now:
        raise errors.InvalidInput(
            "A device price begins with a whole hour (UTC) to come.", code="price_start_invalid",
            data={"field": "valid_from"},
        )  # fmt: skip
    if per_hour is not None and not 0 <= per_hour <= MAX_PRICE:
        raise errors.InvalidInput(f"The price is from 0 to {MAX_PRICE}.", data={"field": "per_hour"})
    if product and not Device.objects.filter(product=product).exists():
        raise errors.InvalidInput(f"No node has or had a device {product!r}.", data={"field": "product"})
    with transaction.atomic():
        if DevicePrice.objects.filter(product=product).count() >= MOST_CHANGES:
            raise errors.InvalidInput(
                "This device type has too many price changes; remove some that are to come.", data={"field": "product"}
            )
        row, _created = DevicePrice.objects.update_or_create(
            product=product,
            valid_from=start,
            defaults={"per_hour": per_hour or 0, "own": per_hour is not None, "changed_at": now},
        )
        _note(actor, product, "device_price.set", {"per_hour": per_hour, "valid_from": start.isoformat()})
    return row


def withdraw(*, actor: Actor, product: str, valid_from: datetime.datetime) -> None:
    """Take back a price that is set for later. Platform admins only.

    Raises:
        NotFound: nothing is set for then, or it holds already.
    """
    access.require_platform_admin(actor)
    with transaction.atomic():
        later = DevicePrice.objects.filter(product=product, valid_from=valid_from, valid_from__gt=clock.now())
        if not later.delete()[0]:
            raise errors.NotFound("No such price is set for later.", code="price_not_found")
        _note(actor, product, "device_price.withdrawn", {"valid_from": valid_from.isoformat()})


def products() -> list[str]:
    """Types of devices that nodes have or had; a MIG instance belongs to its GPU's."""
    return list(Device.objects.filter(parent=None).order_by("product").values_list("product", flat=True).distinct())


def _note(actor: Actor, product: str, action: str, data: Mapping[str, int | str | None]) -> None:
    record(
        actor=actor,
        action=action,
        subject_kind="device_price",
        subject_id=product or "default",
        tenant_id=None,
        subject_label=product or "all devices",
        data=data,
    )

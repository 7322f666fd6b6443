"""Past requests in rows: counted when a replica is planned for the first time, forgotten by half every month."""

import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from typing import Any, Final

from django.db import transaction

from kernel import clock
from scheduling.answers import Ask
from scheduling.demand import MAX_PRODUCTS, Demand, Shape
from scheduling.models import PastRequest
from scheduling.need import Need, in_order

HALF_LIFE: Final = datetime.timedelta(days=30)
MAX_ROWS: Final = 512
#: Sizes are rounded up to this, so that almost equal ones are one shape.
GRAIN_BYTES: Final = 64 * 1024**2
#: Longer lists of products count as not limited: a row must fit into its index.
MAX_NAMES_BYTES: Final = 2000


def current() -> Demand:
    """What is typically asked for, as of now."""
    now = clock.now()
    return Demand.of({_shape(row): _faded(row, now) for row in PastRequest.objects.order_by("id")[:MAX_ROWS]})


def record(asks: Iterable[Ask]) -> int:
    """Count those of ``asks`` that are asked for the first time; return how many."""
    counts: dict[Shape, int] = {}
    for ask in asks:
        if ask.first:
            shape = _coarse(shape_of(ask.needs))
            counts[shape] = counts.get(shape, 0) + 1
    if not counts:
        return 0
    now = clock.now()
    with transaction.atomic():
        for shape, count in sorted(counts.items()):
            key: dict[str, Any] = {name: getattr(shape, name) for name in PastRequest.SHAPE}
            key["products"] = list(shape.products)
            PastRequest.objects.get_or_create(**key, defaults={"weight": 0.0, "updated_at": now})
            row = PastRequest.objects.select_for_update(no_key=True).get(**key)
            row.weight, row.updated_at = _faded(row, now) + count, now
            row.save(update_fields=["weight", "updated_at"])
        _forget(now)
    return sum(counts.values())


def shape_of(needs: Mapping[str, Need]) -> Shape:
    """The request that ``needs`` stand for: of the best kind, limited to the products that they are for all together.

    One need of that kind for any product, or more products than are kept, and it is not limited.
    """
    ordered = in_order(needs)
    first = ordered[0]
    alike = [need.products for need in ordered if need.kind == first.kind]
    products = tuple(sorted(frozenset().union(*alike))) if all(alike) else ()
    if len(products) > MAX_PRODUCTS or sum(len(name.encode()) for name in products) > MAX_NAMES_BYTES:
        products = ()
    return dataclasses.replace(first.shape, products=products)


def _forget(now: datetime.datetime) -> None:
    rows = list(PastRequest.objects.all())
    if len(rows) > MAX_ROWS:
        least = sorted(rows, key=lambda row: (_faded(row, now), row.pk))[: len(rows) - MAX_ROWS]
        PastRequest.objects.filter(pk__in=[row.pk for row in least]).delete()


def _faded(row: PastRequest, now: datetime.datetime) -> float:
    return float(row.weight * 0.5 ** (max(now - row.updated_at, datetime.timedelta()) / HALF_LIFE))


def _shape(row: PastRequest) -> Shape:
    return Shape(row.kind, row.devices, row.memory_bytes, row.millis, row.millicpus, tuple(row.products))


def _coarse(shape: Shape) -> Shape:
    grains = -(-shape.memory_bytes // GRAIN_BYTES)
    return dataclasses.replace(shape, memory_bytes=grains * GRAIN_BYTES)

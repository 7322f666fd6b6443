"""What engines measured of a version under one serving config on one product: the largest of each part, in bytes.

Once there, the planner takes these instead of its estimate. Stand-ins run no model, so what they report is not kept.
"""

import dataclasses
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from django.db.models.functions import Greatest

from fleet.models import DeviceKind, Partition
from kernel import clock, scope
from serving.models import Peak, Replica

PARTS: Final = ("weights_bytes", "workspace_bytes", "context_bytes")
Key = tuple[uuid.UUID, uuid.UUID]


@dataclasses.dataclass(frozen=True)
class Measured:
    """Bytes of one replica on a device of ``product``, without its KV cache."""

    kind: str
    product: str
    weights_bytes: int
    workspace_bytes: int
    context_bytes: int


@dataclasses.dataclass(frozen=True, order=True)
class Seen:
    """What one replica reports, and of what it is a measure. ``parts`` as in :data:`PARTS`, bytes."""

    tenant_id: uuid.UUID
    version_id: uuid.UUID
    serving_config_id: uuid.UUID
    kind: str
    product: str
    parts: tuple[int, ...]


def look(replica: Replica, ledger: Mapping[str, Any], before: Mapping[str, Any] | None) -> Seen | None:
    """What ``replica`` reports, where a part of it is larger than what was reported ``before``."""
    if replica.parallel or not grows(ledger, before):
        return None
    part = Partition.objects.select_related("device").filter(replica_id=replica.id).first()
    if part is None or part.device.kind == DeviceKind.SIMULATED:
        return None
    revision = replica.deployment.revision
    return Seen(
        replica.tenant_id, revision.version_id, revision.serving_config_id, part.device.kind, part.device.product,
        _parts(ledger),
    )  # fmt: skip


def grows(ledger: Mapping[str, Any], before: Mapping[str, Any] | None) -> bool:
    """Whether a part of what an engine reports is larger than what it reported ``before`` (pure)."""
    larger = any(new > old for new, old in zip(_parts(ledger), _parts(before or {}), strict=True))
    return larger and bool(int(ledger.get("weights_bytes") or 0))


def _parts(ledger: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(ledger.get(name) or 0) for name in PARTS)


def note(seen: Iterable[Seen]) -> None:
    """Keep the largest of each part. In one order, so that reports of several nodes never wait for each other."""
    for one in sorted(seen):
        now = dict(zip(PARTS, one.parts, strict=True))
        row, made = Peak.objects.get_or_create(
            tenant_id=one.tenant_id, version_id=one.version_id, serving_config_id=one.serving_config_id,
            kind=one.kind, product=one.product, defaults={**now, "measured_at": clock.now()},
        )  # fmt: skip
        if not made and any(now[name] > getattr(row, name) for name in PARTS):
            largest = {name: Greatest(name, now[name]) for name in PARTS}
            Peak.objects.filter(id=row.id).update(**largest, measured_at=clock.now())


def measured(pairs: Collection[Key]) -> dict[Key, tuple[Measured, ...]]:
    """By (version, serving config), what was measured on each product. One query."""
    found: dict[Key, list[Measured]] = {}
    with scope.all_tenants():
        rows = Peak.objects.filter(version_id__in={version for version, _config in pairs}).order_by("product")
        for row in rows:
            key = (row.version_id, row.serving_config_id)
            if key in pairs:
                found.setdefault(key, []).append(
                    Measured(row.kind, row.product, row.weights_bytes, row.workspace_bytes, row.context_bytes)
                )
    return {key: tuple(values) for key, values in found.items()}

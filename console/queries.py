"""What several pages ask of the rooms, joined for people: names to call, who serves a version, memory of replicas."""

import dataclasses
import uuid
from collections.abc import Iterable
from typing import Any

from django.db.models import Prefetch

from catalog.configs import Settings
from catalog.models import Alias, ModelVersion
from catalog.states import VersionState
from console.presenters import hbm
from console.web import Here
from kernel import scope
from quotas import selectors as quota_selectors
from quotas.amount import Kind, Line
from serving import selectors as serving
from serving.models import Deployment, Replica
from serving.states import ReplicaState
from tenants.models import Tenant

MAX_VERSIONS = 500
MAX_BESIDE = 4


def callable_names(here: Here) -> list[str]:
    """Model names that the tenant's keys can call: its own endpoints and granted ones."""
    return [item.model for item in serving.callable_endpoints(here.tenant)]


def served_by(tenant: Tenant) -> dict[uuid.UUID, list[Any]]:
    """Deployments by the version they serve."""
    found: dict[uuid.UUID, list[Any]] = {}
    with scope.tenant(tenant.id):
        rows = list(Deployment.objects.select_related("endpoint", "revision").order_by("-id"))
    for deployment in rows:
        found.setdefault(deployment.revision.version_id, []).append(deployment)
    return found


def ready_versions(tenant: Tenant) -> list[ModelVersion]:
    """What can be deployed, newest first, with models and aliases at hand; at most ``MAX_VERSIONS``."""
    with scope.tenant(tenant.id):
        rows = ModelVersion.objects.filter(state=VersionState.READY).select_related("model").order_by("-id")
        return list(rows.prefetch_related(Prefetch("aliases", Alias.objects.order_by("name")))[:MAX_VERSIONS])


def version_choices(tenant: Tenant) -> list[tuple[str, str]]:
    """Ready versions of every model, newest first, as choices of a form: ``model:number`` and what people read."""
    found = []
    for version in ready_versions(tenant):
        names = ", ".join(alias.name for alias in version.aliases.all())
        label = f"{version.model.name} v{version.number}"
        found.append((f"{version.model.name}:{version.number}", f"{label} ({names})" if names else label))
    return found


def made_of(revision: Any) -> dict[str, Any]:
    """What a revision is made of, flat: for a comparison of two."""
    config = revision.serving_config
    return {
        "model": revision.model.name,
        "version": f"v{revision.version.number}",
        "size": f"{revision.version.size_bytes:,} B",
        **{field.name: getattr(config, field.name) for field in dataclasses.fields(Settings)},
        "runtime": str(revision.runtime),
    }


def beside(deployment: Deployment) -> list[Deployment]:
    """The newest other deployments behind the same endpoint, with what they are made of at hand."""
    with scope.tenant(deployment.tenant_id):
        rows = Deployment.objects.select_related(
            "revision__model", "revision__version", "revision__serving_config", "revision__runtime"
        )
        return list(rows.filter(endpoint=deployment.endpoint_id).exclude(id=deployment.id).order_by("-id")[:MAX_BESIDE])


def quota_line(tenant: Tenant, kind: Kind) -> Line:
    """One quota of the tenant."""
    return next(line for line in quota_selectors.lines_of(tenant) if line.kind is kind)


@dataclasses.dataclass(frozen=True)
class Holding:
    """The memory of some replicas together; ``above_high`` of ``replicas`` are above their high watermark."""

    memory: hbm.Memory | None
    replicas: int
    above_high: int


def holding(replicas: Iterable[Any]) -> Holding:
    """The memory of ``replicas`` that report a ledger and are not on their way out."""
    return _together(row.ledger for row in replicas if row.state != "stopped")


def holding_of(tenant: Tenant) -> Holding:
    """The memory of all replicas of ``tenant``: nothing but their ledgers is read."""
    with scope.tenant(tenant.id):
        live = Replica.objects.exclude(state=ReplicaState.STOPPED).exclude(ledger=None)
        return _together(live.order_by().values_list("ledger", flat=True))


def _together(ledgers: Iterable[Any]) -> Holding:
    known = [memory for ledger in ledgers if (memory := hbm.of_ledger(ledger)) is not None]
    return Holding(hbm.together(known), len(known), sum(1 for memory in known if memory.mood))

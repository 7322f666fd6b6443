"""What several pages ask of the rooms, joined for people: names to call, who serves a version, memory of replicas."""

import dataclasses
import uuid
from collections.abc import Collection, Iterable
from typing import Any

from django.db.models import Prefetch
from django.utils.translation import gettext as _

from catalog import configs
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


@dataclasses.dataclass(frozen=True)
class Offered:
    """A ready version as a choice of a form: ``value`` is ``model:number``, ``label`` what people read."""

    model: str
    value: str
    label: str
    has_engine: bool


@dataclasses.dataclass(frozen=True)
class Versions:
    """Ready versions of every model, newest first."""

    offered: tuple[Offered, ...]

    @property
    def choices(self) -> list[tuple[str, str]]:
        """As a form takes them."""
        return [(one.value, one.label) for one in self.offered]

    @property
    def have_engines(self) -> bool:
        """True when at least one can be deployed."""
        return any(one.has_engine for one in self.offered)

    def newest(self, models: Collection[str] = ()) -> str:
        """The newest that can be deployed, of ``models`` if any are named; of several that cannot the newest; or ""."""
        among = [one for one in self.offered if not models or one.model in models]
        return next((one.value for one in among if one.has_engine), among[0].value if among else "")


def version_choices(tenant: Tenant) -> Versions:
    """What a form offers to deploy; of what no engine runs the label says so, as where it would fit can be asked."""
    found = []
    for version in ready_versions(tenant):
        has_engine = not configs.no_engine(configs.DEFAULTS, version.format)
        said = [alias.name for alias in version.aliases.all()] + ([] if has_engine else [_("no engine")])
        label = f"{version.model.name} v{version.number}"
        label += f" ({', '.join(said)})" if said else ""
        value = f"{version.model.name}:{version.number}"
        found.append(Offered(model=version.model.name, value=value, label=label, has_engine=has_engine))
    return Versions(tuple(found))


def made_of(revision: Any) -> dict[str, Any]:
    """What a revision is made of, flat: for a comparison of two."""
    config = revision.serving_config
    return {
        "model": revision.model.name,
        "version": f"v{revision.version.number}",
        "size": f"{revision.version.size_bytes:,} B",
        **{field.name: getattr(config, field.name) for field in dataclasses.fields(Settings)},
        "products": ", ".join(config.products),
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

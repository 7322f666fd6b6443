"""The numbers around a page: counts in the sidebar, the level at its foot, places for the palette."""

import dataclasses
from collections.abc import Mapping

from django.urls import reverse

from catalog import selectors as catalog
from console import fleetviews, queries
from console.presenters import hbm
from console.web import Here
from fleet import selectors as fleet
from fleet.states import DeviceState
from rollouts import selectors as rollouts
from serving import selectors as serving
from tenants import selectors as tenants
from tenants.models import Tenant

MAX_PLACES = 60


@dataclasses.dataclass(frozen=True)
class Around:
    """``places`` are (label, url, icon) that the palette can go to."""

    counts: Mapping[str, int]
    memory: hbm.Memory | None
    replicas: int
    above_high: int
    places: tuple[tuple[str, str, str], ...] = ()


def of_tenant(here: Here) -> Around:
    """Around a tenant's page."""
    slug = here.tenant.slug
    deployments = serving.named_deployments(here.tenant, MAX_PLACES)
    models = list(catalog.models_of(here.tenant).values_list("name", flat=True))
    held = queries.holding_of(here.tenant)
    counts = {
        "models": len(models),
        "deployments": serving.deployment_count(here.tenant),
        "rollouts": rollouts.active_count(here.tenant),
        "keys": tenants.keys_of(here.tenant).filter(revoked_at=None).count(),
        "members": tenants.members_of(here.tenant).count(),
    }
    places = [
        (name, reverse("console:deployment", kwargs={"slug": slug, "deployment_id": ident}), "deployments")
        for ident, name in deployments
    ]
    places += [
        (name, reverse("console:model", kwargs={"slug": slug, "model": name}), "models") for name in models[:MAX_PLACES]
    ]
    return Around(counts, held.memory, held.replicas, held.above_high, tuple(places))


def of_platform() -> Around:
    """Around a page of the platform."""
    devices = list(fleet.devices())
    ledgers = fleetviews.ledgers_of(devices)
    memories = [fleetviews.memory_of(device, ledgers) for device in devices if not device.is_cut]
    counts = {
        "devices": len(devices),
        "nodes": fleet.fleet_counts()["nodes"],
        "tenants": Tenant.objects.count(),
        "faults": sum(1 for device in devices if device.state != DeviceState.HEALTHY),
    }
    above = sum(1 for memory in memories if memory.mood)
    return Around(counts, hbm.together(memories), len(ledgers), above)

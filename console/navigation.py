"""The sidebar: groups of links, for a tenant and for the platform. Counts are filled in by ``context``."""

import dataclasses
from collections.abc import Mapping
from typing import Final

from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


@dataclasses.dataclass(frozen=True)
class Link:
    """``route`` is a URL name; ``section`` is what pages below it call themselves."""

    section: str
    route: str
    icon: str
    label: str | Promise
    counted: str = ""


@dataclasses.dataclass(frozen=True)
class Item:
    """A link as the template draws it."""

    url: str
    icon: str
    label: str | Promise
    is_current: bool
    count: int | None


Group = tuple[str | Promise, tuple[Link, ...]]

TENANT: Final[tuple[Group, ...]] = (
    ("", (Link("home", "home", "home", _("Home")),)),
    (
        _("Build"),
        (
            Link("models", "models", "models", _("Models"), "models"),
            Link("deployments", "deployments", "deployments", _("Deployments"), "deployments"),
            Link("rollouts", "rollouts", "rollouts", _("Rollouts"), "rollouts"),
            Link("playground", "playground", "playground", _("Playground")),
        ),
    ),
    (
        _("Observe"),
        (
            Link("usage", "usage", "usage", _("Usage")),
            Link("audit", "audit", "audit", _("Audit log")),
        ),
    ),
    (
        _("Manage"),
        (
            Link("keys", "keys", "keys", _("API keys"), "keys"),
            Link("members", "members", "members", _("Members"), "members"),
            Link("settings", "settings", "settings", _("Settings")),
        ),
    ),
)
PLATFORM: Final[tuple[Group, ...]] = (
    ("", (Link("overview", "platform", "home", _("Overview")),)),
    (
        _("Capacity"),
        (
            Link("gpus", "platform-devices", "gpu", _("GPU map"), "devices"),
            Link("layouts", "platform-layouts", "vessel", _("MIG layouts")),
            Link("nodes", "platform-nodes", "nodes", _("Nodes"), "nodes"),
            Link("quotas", "platform-quotas", "quota", _("Quotas and limits")),
        ),
    ),
    (
        _("Tenants"),
        (
            Link("tenants", "platform-tenants", "tenants", _("Tenants"), "tenants"),
            Link("people", "platform-people", "members", _("People")),
            Link("prices", "platform-prices", "price", _("Prices")),
        ),
    ),
    (
        _("Operate"),
        (
            Link("faults", "platform-faults", "pulse", _("Faults"), "faults"),
            Link("audit", "platform-audit", "audit", _("Audit log")),
            Link("system", "platform-system", "system", _("System health")),
        ),
    ),
)


def items(slug: str, section: str, counts: Mapping[str, int]) -> list[tuple[str | Promise, list[Item]]]:
    """Groups of items; ``slug`` "" is the platform's sidebar."""
    groups = TENANT if slug else PLATFORM
    kwargs = {"slug": slug} if slug else {}
    return [
        (
            title,
            [
                Item(
                    reverse(f"console:{link.route}", kwargs=kwargs),
                    link.icon,
                    link.label,
                    link.section == section,
                    counts.get(link.counted),
                )
                for link in links
            ],
        )
        for title, links in groups
    ]

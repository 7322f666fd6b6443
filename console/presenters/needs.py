"""What needs attention at home: a short list, each with a sentence and the one place to act."""

import dataclasses
import datetime
from collections.abc import Iterable
from typing import Any, Final

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

#: What a replica without a place says of itself by default; the line has said so already.
WAITING: Final = "Waiting for a place."
#: States of a deployment that somebody should look at.
TROUBLE: Final = ("failed", "degraded", "pending")
SOON: Final = datetime.timedelta(days=7)


@dataclasses.dataclass(frozen=True)
class Need:
    """``kind`` and ``state`` pick the glyph; ``detail`` is in the room's own words."""

    kind: str
    state: str
    subject: str
    text: str
    detail: str
    since: datetime.datetime | None
    url: str
    act: str


def of_deployments(slug: str, rows: Iterable[tuple[Any, Any]]) -> list[Need]:
    """Deployments (with their health) that do not serve as wanted, or whose replicas are above high."""
    found = []
    for deployment, health in rows:
        url = reverse("console:deployment", kwargs={"slug": slug, "deployment_id": deployment.id})
        if health.word in TROUBLE:
            text = {
                "failed": _("no replica could be started."),
                "degraded": _("some replicas have trouble."),
                "pending": _("replicas wait for a place."),
            }[health.word]
            found.append(
                Need(
                    "deployment",
                    health.word,
                    deployment.endpoint.name,
                    text,
                    "" if health.word == "pending" and health.sentence == WAITING else health.sentence,
                    None,
                    url,
                    _("Open deployment"),
                )
            )
    return found


def of_levels(slug: str, rows: Iterable[tuple[Any, Any, Any]]) -> list[Need]:
    """Replicas (deployment, replica, memory) above their high watermark."""
    found = []
    for deployment, replica, memory in rows:
        if not memory.mood:
            continue
        url = reverse("console:deployment", kwargs={"slug": slug, "deployment_id": deployment.id})
        text = _("replica %(name)s is above its high watermark, so it takes no new sequences.") % {
            "name": replica.short_id
        }
        found.append(Need("replica", "degraded", deployment.endpoint.name, text, "", None, url, _("Open deployment")))
    return found


def of_keys(slug: str, keys: Iterable[Any], now: datetime.datetime) -> list[Need]:
    """Keys that expire within a week."""
    found = []
    url = reverse("console:keys", kwargs={"slug": slug})
    for key in keys:
        if key.revoked_at or key.expires_at is None or not now < key.expires_at < now + SOON:
            continue
        days = max(1, (key.expires_at - now).days)
        text = ngettext("the key expires in %(days)s day.", "the key expires in %(days)s days.", days) % {"days": days}
        found.append(Need("key", "expires_soon", key.name, text, "", None, url, _("Open keys")))
    return found


def of_versions(slug: str, versions: Iterable[Any]) -> list[Need]:
    """Latest versions that were rejected."""
    found = []
    for version in versions:
        if version.state != "rejected":
            continue
        url = reverse("console:version", kwargs={"slug": slug, "model": version.model.name, "number": version.number})
        subject = f"{version.model.name} v{version.number}"
        found.append(
            Need(
                "version",
                "rejected",
                subject,
                _("was rejected."),
                version.message,
                version.state_changed_at,
                url,
                _("Open version"),
            )
        )
    return found

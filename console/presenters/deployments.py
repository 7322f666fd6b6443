"""How deployments and endpoints are going, in the visitor's language, from the health that ``serving`` derives."""

import dataclasses
from typing import Any, Final

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from console.presenters import codewords

CONDITIONS: Final[dict[str, str | Promise]] = {
    "Available": gettext_lazy("Available"),
    "Progressing": gettext_lazy("Progressing"),
    "QuotaOK": gettext_lazy("Quota OK"),
    "Healthy": gettext_lazy("Healthy"),
}


@dataclasses.dataclass(frozen=True)
class Condition:
    """A condition as the page shows it; ``glyph`` is a state of the kind "condition"."""

    label: str | Promise
    glyph: str
    reason: str
    message: str


def sentence(word: str, ready: int, desired: int) -> str:
    """One derived sentence for a deployment's page head."""
    if word in ("ready", "progressing", "degraded", "starting"):
        return ngettext(
            "%(ready)s of %(desired)s replica serves", "%(ready)s of %(desired)s replicas serve", desired
        ) % {
            "ready": ready,
            "desired": desired,
        }
    return {
        "pending": _("No replica has a place yet"),
        "failed": _("No replica could be started"),
        "idle": _("No replica is wanted"),
        "stopping": _("Replicas finish their requests and stop"),
        "stopped": _("Stopped by a member"),
        "deleting": _("Is deleted once the last replica has stopped"),
    }.get(word, word)


def conditions(found: Any) -> list[Condition]:
    """Conditions in a fixed order. Progressing is no trouble: true is "in progress", false is settled."""
    shown = []
    for condition in found:
        holds = condition.status == "True"
        if condition.type == "Progressing":
            glyph = "progressing" if holds else "true"
        else:
            glyph = "true" if holds else "false" if condition.status == "False" else "unknown"
        label = CONDITIONS.get(condition.type, condition.type)
        if condition.type == "Progressing":
            label = label if holds else _("Settled")
        elif not holds:
            label = _("%(label)s: %(why)s") % {"label": label, "why": codewords.coded(condition.reason).text}
        shown.append(Condition(label, glyph, condition.reason, condition.message))
    return shown

"""How strictly replicas are kept apart, in words (pure)."""

from collections.abc import Mapping
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from kernel.isolation import Isolation, Requirement

#: The least that is accepted.
REQUIRED: Final[Mapping[str, Promise]] = {
    Requirement.ANY.value: _("any: a cap that the engine keeps"),
    Requirement.MPS.value: _("limits that the driver keeps (MPS)"),
    Requirement.HARDWARE.value: _("a wall of hardware: MIG instance or whole device"),
    Requirement.EXCLUSIVE.value: _("a whole device"),
}
#: What a part of a device is.
CLASSES: Final[Mapping[str, Promise]] = {
    Isolation.EXCLUSIVE.value: _("Whole device"),
    Isolation.MIG.value: _("MIG instance"),
    Isolation.MPS.value: _("MPS share"),
    Isolation.COOPERATIVE.value: _("Cooperative share"),
}
#: The kinds of isolation that a host may offer.
WALLS: Final[Mapping[str, Promise]] = {
    "process_group": _("A session of its own"),
    "folder": _("A private folder"),
    "devices": _("Its devices alone"),
    "token": _("A token on its port"),
    "user": _("A user of its own"),
    "no_new_privileges": _("No new privileges"),
    "limits": _("Limits on files and dumps"),
    "cgroup": _("Limits on memory, CPU and processes"),
    "network": _("A network of its own"),
    "mps": _("Limits on shares of a GPU"),
}

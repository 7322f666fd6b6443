"""How strictly replicas are kept apart: the class that a part of a device has, and the least that is required (pure).

A tenant, a version and a serving config may each require one; the strictest of them decides where a replica can go.
"""

from typing import Final

from django.db import models
from django.utils.translation import gettext_lazy as _


class Requirement(models.TextChoices):
    """The least that is accepted: nothing in particular, limits that the driver keeps, a wall of hardware (a MIG
    instance or a whole device), a whole device."""

    ANY = "any", _("any: a cap that the engine keeps by itself is enough")
    MPS = "mps", _("mps: limits that the driver keeps, or stricter")
    HARDWARE = "hardware", _("hardware: a MIG instance or a whole device")
    EXCLUSIVE = "exclusive", _("exclusive: a whole device")


_ORDER: Final = tuple(each.value for each in Requirement)


def strictest(*wanted: str) -> str:
    """The strictest of some requirements; "" and unknown words require nothing."""
    return _ORDER[max((_ORDER.index(each) for each in wanted if each in _ORDER), default=0)]


def at_least(given: str, wanted: str) -> bool:
    """True when requirement ``given`` is as strict as ``wanted``."""
    return strictest(given, wanted) == strictest(given)


class Isolation(models.TextChoices):
    """How strictly a partition is kept apart from its neighbours; shown for what it is."""

    EXCLUSIVE = "exclusive", _("Whole device")
    MIG = "mig", _("MIG instance")
    MPS = "mps", _("MPS share")
    COOPERATIVE = "cooperative", _("Cooperative share")

    def meets(self, wanted: str) -> bool:
        """True when a partition of this class is as strict as the requirement ``wanted``."""
        return at_least(_LEVELS[self.value], wanted)


_LEVELS: Final = {
    Isolation.EXCLUSIVE.value: Requirement.EXCLUSIVE.value,
    Isolation.MIG.value: Requirement.HARDWARE.value,
    Isolation.MPS.value: Requirement.MPS.value,
    Isolation.COOPERATIVE.value: Requirement.ANY.value,
}
#: Programs that the MPS server of one GPU lets in (CUDA up to 13.0; later ones let 60 in).
MAX_MPS_CLIENTS: Final = 48

"""States of nodes and devices: values, edges, and who owns each edge."""

from typing import Final

from django.db import models
from django.utils.translation import gettext_lazy as _

from kernel.machine import Transitions


class NodeState(models.TextChoices):
    """Where a node is.

    joining → ready: its first report. ready ⇄ cordoned, → draining: a person. draining → drained: the serving loop,
    once nothing is left on it. any → lost: the lease loop. lost → what it was before: its own report.
    any → removed: a person; removed → joining: the machine joins again with a new token.
    """

    JOINING = "joining", _("Joining")
    READY = "ready", _("Ready")
    CORDONED = "cordoned", _("Cordoned")
    DRAINING = "draining", _("Draining")
    DRAINED = "drained", _("Drained")
    LOST = "lost", _("Lost")
    REMOVED = "removed", _("Removed")


_N = NodeState
NODE: Final[Transitions[NodeState]] = Transitions(
    "node",
    {
        _N.JOINING: {_N.READY, _N.LOST, _N.REMOVED},
        _N.READY: {_N.CORDONED, _N.DRAINING, _N.LOST, _N.REMOVED},
        _N.CORDONED: {_N.READY, _N.DRAINING, _N.LOST, _N.REMOVED},
        _N.DRAINING: {_N.DRAINED, _N.READY, _N.CORDONED, _N.LOST, _N.REMOVED},
        _N.DRAINED: {_N.READY, _N.CORDONED, _N.LOST, _N.REMOVED},
        _N.LOST: {_N.READY, _N.CORDONED, _N.DRAINING, _N.DRAINED, _N.REMOVED},
        _N.REMOVED: {_N.JOINING},
    },
)

#: States of a node that answers.
ALIVE: Final = frozenset({_N.READY, _N.CORDONED, _N.DRAINING, _N.DRAINED})
#: States in which a silent node becomes lost.
WATCHED: Final = ALIVE


class DeviceState(models.TextChoices):
    """Health of a device.

    healthy → suspect, any → quarantined, → retired: the fault policy (``faults``) or a person. suspect → healthy: the
    node's reports, or time without a fault. quarantined → recovering: the repair that it waits for, seen in reports, or
    a person. recovering → healthy: time without a fault. retired → recovering: a person who knows better.
    """

    HEALTHY = "healthy", _("Healthy")
    SUSPECT = "suspect", _("Suspect")
    QUARANTINED = "quarantined", _("Quarantined")
    RECOVERING = "recovering", _("Recovering")
    RETIRED = "retired", _("Retired")


_D = DeviceState
DEVICE: Final[Transitions[DeviceState]] = Transitions(
    "device",
    {
        _D.HEALTHY: {_D.SUSPECT, _D.QUARANTINED, _D.RETIRED},
        _D.SUSPECT: {_D.HEALTHY, _D.QUARANTINED, _D.RETIRED},
        _D.QUARANTINED: {_D.RECOVERING, _D.RETIRED},
        _D.RECOVERING: {_D.HEALTHY, _D.QUARANTINED, _D.RETIRED},
        _D.RETIRED: {_D.RECOVERING},
    },
)

#: States of a device that replicas are to leave.
SICK: Final = frozenset({_D.QUARANTINED, _D.RECOVERING, _D.RETIRED})

"""States of deployments and replicas: values, edges, and who owns each edge."""

from typing import Final

from django.db import models
from django.utils.translation import gettext_lazy as _

from kernel.machine import Transitions


class DeploymentState(models.TextChoices):
    """What its owner wants of a deployment; how it is going is derived in ``serving.conditions``.

    running ⇄ stopped, any → deleting: a member. A deleting deployment vanishes when its last replica has stopped.
    """

    RUNNING = "running", _("Running")
    STOPPED = "stopped", _("Stopped")
    DELETING = "deleting", _("Deleting")


_D = DeploymentState
DEPLOYMENT: Final[Transitions[DeploymentState]] = Transitions(
    "deployment",
    {_D.RUNNING: {_D.STOPPED, _D.DELETING}, _D.STOPPED: {_D.RUNNING, _D.DELETING}, _D.DELETING: set()},
)


class ReplicaState(models.TextChoices):
    """Where a replica is.

    pending → assigned: scheduling. assigned … ready ⇄ degraded, ready ⇄ asleep, → failed: reports of its node, which
    may also go back (an engine that the agent has started again is fetching once more). any → draining: the serving
    loop, a person, or the node. draining → stopped: the node reported it gone. failed → pending, on a new generation:
    the serving loop, after the node gave it up. placed → unreachable: the serving loop, when the node is lost; back:
    the node's report.
    """

    PENDING = "pending", _("Pending")
    ASSIGNED = "assigned", _("Assigned")
    FETCHING = "fetching", _("Fetching")
    LOADING = "loading", _("Loading")
    WARMING = "warming", _("Warming")
    READY = "ready", _("Ready")
    DEGRADED = "degraded", _("Degraded")
    ASLEEP = "asleep", _("Asleep")
    DRAINING = "draining", _("Draining")
    STOPPED = "stopped", _("Stopped")
    FAILED = "failed", _("Failed")
    UNREACHABLE = "unreachable", _("Unreachable")


_R = ReplicaState
#: States that a node's report can put a running replica in.
OBSERVED: Final = frozenset({_R.FETCHING, _R.LOADING, _R.WARMING, _R.READY, _R.DEGRADED, _R.ASLEEP, _R.FAILED})
_END: Final = frozenset({_R.DRAINING, _R.STOPPED, _R.FAILED})
_PLACED: Final = OBSERVED | _END | {_R.UNREACHABLE}

REPLICA: Final[Transitions[ReplicaState]] = Transitions(
    "replica",
    {
        _R.PENDING: {_R.ASSIGNED, _R.STOPPED},
        _R.ASSIGNED: _PLACED,
        _R.FETCHING: _PLACED,
        _R.LOADING: _PLACED,
        _R.WARMING: _PLACED,
        _R.READY: _PLACED,
        _R.DEGRADED: _PLACED,
        _R.ASLEEP: _PLACED,
        _R.FAILED: _PLACED | {_R.PENDING},
        _R.UNREACHABLE: _PLACED,
        _R.DRAINING: {_R.STOPPED},
        _R.STOPPED: set(),
    },
)

#: States in which gateways may send traffic; a sleeping replica wakes for it.
SERVING: Final = frozenset({_R.READY, _R.DEGRADED, _R.ASLEEP})
#: States of a replica on its way to ready.
STARTING: Final = frozenset({_R.ASSIGNED, _R.FETCHING, _R.LOADING, _R.WARMING})
#: States that count towards the desired number.
WANTED: Final = frozenset({_R.PENDING, _R.FAILED}) | STARTING | SERVING
#: States in which a replica should run on its node.
RUNNING_ON_NODE: Final = STARTING | SERVING | {_R.FAILED, _R.UNREACHABLE}
#: States of a placed replica that can be asked to end for another, where one of its nodes hears it.
MAY_GIVE_WAY: Final = RUNNING_ON_NODE
#: Reason of a pending replica that asks for a place and was not refused one. A refusal has the planner's own reason.
WAITING_FOR_PLACEMENT: Final = "WaitingForPlacement"

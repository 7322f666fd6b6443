"""States of rollouts and experiments: values, edges, and who owns each edge."""

from typing import Final

from django.db import models
from django.utils.translation import gettext_lazy as _

from kernel.machine import Transitions


class RolloutState(models.TextChoices):
    """Where a rollout is.

    planned → running: a person. running → paused: a person or an inconclusive verdict; back: a person. running →
    promoted: the loop after the last step, or a person. running, paused → rolling_back: a failed verdict or a person;
    → rolled_back: the loop, once the baseline has all the traffic. → aborted: a person; the weights stay as they are.
    promoted → rolling_back: a person, while the baseline is kept.
    """

    PLANNED = "planned", _("Planned")
    RUNNING = "running", _("Running")
    PAUSED = "paused", _("Paused")
    PROMOTED = "promoted", _("Promoted")
    ROLLING_BACK = "rolling_back", _("Rolling back")
    ROLLED_BACK = "rolled_back", _("Rolled back")
    ABORTED = "aborted", _("Aborted")


_R = RolloutState
_STOPPABLE: Final = frozenset({_R.PROMOTED, _R.ROLLING_BACK, _R.ABORTED})

ROLLOUT: Final[Transitions[RolloutState]] = Transitions(
    "rollout",
    {
        _R.PLANNED: {_R.RUNNING, _R.ABORTED},
        _R.RUNNING: _STOPPABLE | {_R.PAUSED},
        _R.PAUSED: _STOPPABLE | {_R.RUNNING},
        _R.PROMOTED: {_R.ROLLING_BACK},
        _R.ROLLING_BACK: {_R.ROLLED_BACK, _R.ABORTED},
        _R.ROLLED_BACK: set(),
        _R.ABORTED: set(),
    },
)

#: States in which the rollout owns the weights of its endpoint.
ACTIVE: Final = frozenset({_R.PLANNED, _R.RUNNING, _R.PAUSED, _R.ROLLING_BACK})
#: States that the loop looks at (promoted: to retire the baseline when it was kept long enough).
LOOKED_AT: Final = frozenset({_R.RUNNING, _R.ROLLING_BACK, _R.PROMOTED})


class ExperimentState(models.TextChoices):
    """running → ended: a person, or the loop when its time is up."""

    RUNNING = "running", _("Running")
    ENDED = "ended", _("Ended")


EXPERIMENT: Final[Transitions[ExperimentState]] = Transitions(
    "experiment", {ExperimentState.RUNNING: {ExperimentState.ENDED}, ExperimentState.ENDED: set()}
)

"""How often nodes report: as often as is useful, and no more often than the control plane can bear (pure but for the
count of nodes, which is looked up now and then).

A report is both heartbeat and observation. Its price is the same whatever the fleet, so the interval grows with the
fleet; the lease grows with it, so that losing a few reports never looks like losing a machine. What cannot wait (a
fault, a replica that has changed) an agent reports at once, whatever the interval.
"""

import dataclasses
import datetime
import threading
from typing import Final

from django.conf import settings

from fleet.models import Node
from fleet.states import WATCHED, NodeState
from kernel import clock

#: This many reports in a row may be lost before a node counts as lost.
MISSES: Final = 5
#: Those that have joined and not reported yet are about to.
REPORTING: Final = (*WATCHED, NodeState.JOINING)
COUNT_EVERY: Final = datetime.timedelta(seconds=10)


@dataclasses.dataclass(frozen=True)
class Pace:
    """What a node is told: seconds from report to report, and how long it may be silent."""

    interval_seconds: float
    lease_seconds: float

    @property
    def lease(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self.lease_seconds)


def pace(nodes: int) -> Pace:
    """The pace of a fleet of ``nodes`` (pure)."""
    interval = max(settings.NODE_REPORT_INTERVAL_SECONDS, nodes / settings.NODE_REPORTS_PER_SECOND)
    return Pace(interval, max(settings.NODE_LEASE_SECONDS, interval * MISSES))


class _Counted:
    """The number of nodes, as it was at most :data:`COUNT_EVERY` ago."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: datetime.datetime | None = None
        self._nodes = 0

    @property
    def known(self) -> int:
        """The last count, however old."""
        return self._nodes

    def nodes(self) -> int:
        now = clock.now()
        with self._lock:
            if self._at is not None and self._at <= now < self._at + COUNT_EVERY:
                return self._nodes
        counted = Node.objects.filter(state__in=REPORTING).count()
        with self._lock:
            self._at, self._nodes = now, counted
        return counted


_counted: Final = _Counted()


def current() -> Pace:
    """The pace of this fleet."""
    return pace(_counted.nodes())


def last() -> Pace:
    """What :func:`current` was when this process last looked; asks nobody."""
    return pace(_counted.known)

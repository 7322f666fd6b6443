"""Which replicas get nothing for now: those that fail, and those that stand still. Pure; time is passed in.

Passive ejection: errors in a row, or too large a share of them. An ejected replica comes back after a probe by a real
inference; each further ejection lasts longer. Refusals of a request (4xx) never count.
"""

import math
from collections import deque
from typing import Final

_IN_A_ROW: Final = 5
_UNREACHED_IN_A_ROW: Final = 3
_WINDOW_SECONDS: Final = 10.0
_RATIO: Final = 0.5
_LEAST_REQUESTS: Final = 10
_MOST_KEPT: Final = 200
_FIRST_SECONDS: Final = 5.0
_MOST_SECONDS: Final = 300.0
_FORGIVEN_SECONDS: Final = 600.0  # a replica that was well for so long starts with a clean record
_WATCHED_SECONDS: Final = 15.0  # what was seen longer ago says nothing of the time between
MOST_EJECTED: Final = 0.5  # when more than this share of a deployment is ejected, the fault is not theirs: all are used

CONSECUTIVE: Final = "ConsecutiveErrors"
RATIO: Final = "ErrorRatio"
STUCK: Final = "Stuck"
UNRESPONSIVE: Final = "Unresponsive"
UNREACHABLE: Final = "Unreachable"
BLOCKED: Final = frozenset({STUCK, UNRESPONSIVE, UNREACHABLE})


class Health:
    """One replica. ``since`` is Unix seconds; everything else is on the monotonic clock."""

    def __init__(self) -> None:
        self.reason = ""  # empty: not ejected
        self.message = ""
        self.since = 0.0
        self.until = 0.0  # a probe may show from here on that it is well again
        self._row = 0
        self._unreached = 0
        self._seen: deque[tuple[float, bool]] = deque(maxlen=_MOST_KEPT)
        self._ejections = 0
        self._readmitted_at = 0.0

    @property
    def ejected(self) -> bool:
        """It gets no traffic."""
        return bool(self.reason)

    @property
    def blocked(self) -> bool:
        """It does not compute at all, which is no matter of opinion: it is not used even when all others are."""
        return self.reason in BLOCKED

    def succeeded(self, now: float) -> None:
        """It answered."""
        self._row = self._unreached = 0
        self._seen.append((now, True))

    def failed(self, now: float, unix: float, *, unreached: bool = False) -> bool:
        """It did not do its part, or no connection could be made; return whether it is ejected by that."""
        self._row += 1
        self._unreached = self._unreached + 1 if unreached else 0
        self._seen.append((now, False))
        if self.ejected:
            return False
        if self._unreached >= _UNREACHED_IN_A_ROW:
            self.eject(UNREACHABLE, f"{self._unreached} connections in a row could not be made.", now, unix)
            return True
        if self._row >= _IN_A_ROW:
            self.eject(CONSECUTIVE, f"{self._row} requests in a row failed there.", now, unix)
            return True
        lately = [good for at, good in self._seen if now - at <= _WINDOW_SECONDS]
        bad = lately.count(False)
        if len(lately) >= _LEAST_REQUESTS and bad > _RATIO * len(lately):
            text = f"{bad} of {len(lately)} requests of the last {_WINDOW_SECONDS:g} s failed there."
            self.eject(RATIO, text, now, unix)
            return True
        return False

    def eject(self, reason: str, message: str, now: float, unix: float) -> None:
        """Send nothing there; each time in a row for twice as long."""
        if not self.ejected:
            self.since = unix
        if self._ejections and not self.ejected and now - self._readmitted_at > _FORGIVEN_SECONDS:
            self._ejections = 0
        self.reason, self.message = reason, message
        self.until = now + min(_MOST_SECONDS, _FIRST_SECONDS * 2**self._ejections)
        self._ejections = min(self._ejections + 1, 16)

    def probed(self, good: bool, now: float, unix: float) -> None:
        """A real inference was asked of it while it was ejected."""
        if not self.ejected:
            return
        if not good:
            self.eject(self.reason, self.message, now, unix)
            return
        self.reason = self.message = ""
        self._row = self._unreached = 0
        self._seen.clear()
        self._readmitted_at = now


class StuckWatch:
    """Sees that an engine has work and computes nothing, by what its load path says every second or so."""

    def __init__(self) -> None:
        self._tokens = -1
        self._moved_at = 0.0
        self._seen_at = -math.inf
        self._silent_since: float | None = None

    def saw(self, now: float, *, tokens: int, busy: bool) -> float:
        """Seconds for which it has stood still with work to do; 0 while it moves or has none."""
        watched = now - self._seen_at <= _WATCHED_SECONDS
        self._seen_at, self._silent_since = now, None
        if tokens != self._tokens or not busy or not watched:
            self._tokens, self._moved_at = tokens, now
        return now - self._moved_at

    def silent(self, now: float) -> float:
        """It did not answer; return the seconds since the first time that it did not."""
        if self._silent_since is None or now - self._seen_at > _WATCHED_SECONDS:
            self._silent_since = now
        self._seen_at = now
        return now - self._silent_since

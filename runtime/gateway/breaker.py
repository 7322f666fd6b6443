"""A deployment none of whose replicas can be reached is not asked again and again. Pure; time is passed in.

Only failures of connections and processes count here. What an engine answers to one request, even a 500, may be that
request's own doing and must not close a deployment to others.
"""

from typing import Final

FAILURES: Final = 10  # in a row
_FIRST_SECONDS: Final = 1.0
_MOST_SECONDS: Final = 30.0
_TRIAL_SECONDS: Final = 0.5  # how soon to ask again while one request tries


class Breaker:
    """Closed until ten requests in a row have failed; then open for a while; then one request tries."""

    def __init__(self) -> None:
        self._failures = 0
        self._pause = _FIRST_SECONDS
        self._until: float | None = None  # None: closed
        self._trying = False

    def wait(self, now: float) -> float:
        """Seconds until a request may go; 0 when one may go now."""
        if self._until is None:
            return 0.0
        return _TRIAL_SECONDS if self._trying else max(0.0, self._until - now)

    def took(self) -> None:
        """A request goes."""
        self._trying = self._until is not None

    def succeeded(self) -> None:
        """A replica answered."""
        self._failures, self._pause = 0, _FIRST_SECONDS
        self._until, self._trying = None, False

    def failed(self, now: float) -> bool:
        """A replica could not be reached or broke off; return whether the breaker opened by that."""
        if self._trying:
            self._pause = min(_MOST_SECONDS, self._pause * 2)
        elif self._until is not None:
            return False
        else:
            self._failures += 1
            if self._failures < FAILURES:
                return False
        self._until, self._trying = now + self._pause, False
        return True

    def neither(self) -> None:
        """A request ended without showing anything (its client left)."""
        self._trying = False

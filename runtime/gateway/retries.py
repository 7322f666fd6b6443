"""How often a request may be tried again: a share of the requests that came, so that trouble is never multiplied."""

from typing import Final

SHARE: Final = 0.1
_MOST_SAVED: Final = 10.0


class RetryBudget:
    """Each request earns a tenth of a retry; ten may be saved up. Pure."""

    def __init__(self) -> None:
        self._saved = _MOST_SAVED

    def earn(self) -> None:
        """A request came (a first try)."""
        self._saved = min(_MOST_SAVED, self._saved + SHARE)

    def spend(self) -> bool:
        """Take one retry; false when none is left."""
        if self._saved < 1.0 - 1e-9:  # ten tenths do not quite add up to one
            return False
        self._saved = max(0.0, self._saved - 1.0)
        return True

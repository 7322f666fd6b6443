"""The only type that quota arithmetic uses (pure): a whole number of something, or "unlimited".

Bare ``+`` and ``<`` do not work on an :class:`Amount`, so nobody adds to a limit or compares with -1 by mistake.
"""

import dataclasses
import enum
from typing import Final

UNLIMITED_NUMBER: Final = -1


class Kind(enum.StrEnum):
    """What is counted."""

    GPU_MILLIS = "gpu_millis"  # thousandths of a GPU, by slice
    HBM_BYTES = "hbm_bytes"
    REPLICAS = "replicas"
    STORAGE_BYTES = "storage_bytes"


@dataclasses.dataclass(frozen=True)
class Amount:
    """``number`` of a kind; ``None`` is unlimited. Made by :meth:`of` (counts) or :meth:`limit` (-1 is unlimited)."""

    number: int | None

    @classmethod
    def of(cls, number: int) -> "Amount":
        """A count of things.

        Raises:
            ValueError: ``number`` is negative.
        """
        if number < 0:
            raise ValueError(f"an amount is not negative: {number}")
        return cls(number)

    @classmethod
    def limit(cls, number: int) -> "Amount":
        """A limit as tables and APIs write it: -1 is unlimited.

        Raises:
            ValueError: ``number`` is below -1.
        """
        return UNLIMITED if number == UNLIMITED_NUMBER else cls.of(number)

    @property
    def unlimited(self) -> bool:
        return self.number is None

    def plus(self, other: "Amount") -> "Amount":
        """The sum; with "unlimited" it stays unlimited."""
        if self.number is None or other.number is None:
            return UNLIMITED
        return Amount(self.number + other.number)

    def left_after(self, used: "Amount") -> "Amount":
        """What of this limit is left once ``used`` is taken; never below zero (a limit may be set under the use)."""
        if self.number is None:
            return UNLIMITED
        if used.number is None:
            return ZERO
        return Amount(max(0, self.number - used.number))

    def beyond(self, other: "Amount") -> "Amount":
        """What of this use is above ``other``: nothing where that is unlimited."""
        if other.number is None:
            return ZERO
        return UNLIMITED if self.number is None else Amount(max(0, self.number - other.number))

    def least(self, other: "Amount") -> "Amount":
        """The smaller of the two."""
        return self if other.covers(self) else other

    def covers(self, other: "Amount") -> bool:
        """True when ``other`` is no more than this."""
        if self.number is None:
            return True
        return other.number is not None and other.number <= self.number

    def as_number(self) -> int:
        """As tables and APIs write it: -1 is unlimited."""
        return UNLIMITED_NUMBER if self.number is None else self.number


UNLIMITED: Final = Amount(None)
ZERO: Final = Amount(0)


@dataclasses.dataclass(frozen=True)
class Line:
    """One quota of a tenant: what is held, what may be held, and what of that nobody else may take back.

    An unlimited ``guaranteed`` promises everything up to the limit. ``left_above`` is what the tenant's group has left.
    """

    kind: Kind
    used: Amount
    limit: Amount
    guaranteed: Amount = UNLIMITED
    left_above: Amount = UNLIMITED

    @property
    def left(self) -> Amount:
        """What may still be taken: the least of its own limit and of its group's."""
        return self.limit.left_after(self.used).least(self.left_above)

    @property
    def borrowed(self) -> Amount:
        """What is held above the guarantee: others may claim it back. Without a guarantee nothing is, not even what is
        above a limit that was lowered."""
        return ZERO if self.guaranteed.unlimited else self.used.beyond(self.guaranteed.least(self.limit))

    @property
    def fraction(self) -> float | None:
        """``used`` as a fraction of ``limit`` (above 1 when the limit was lowered); ``None`` when unlimited."""
        if self.limit.number is None or self.used.number is None:
            return None
        if self.limit.number == 0:
            return 1.0
        return self.used.number / self.limit.number

    def allows(self, asked: Amount) -> bool:
        """True when ``asked`` more may be taken. Asking for nothing is always allowed, also above the limit."""
        return asked == ZERO or self.left.covers(asked)

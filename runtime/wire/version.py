"""Protocol version carried by every report and table."""

from typing import Final

import msgspec

MAJOR: Final = 1
MINOR: Final = 1


class ProtocolVersion(msgspec.Struct, frozen=True, kw_only=True):
    """Two parties may talk when their majors are equal."""

    major: int = MAJOR
    minor: int = MINOR


CURRENT: Final = ProtocolVersion()


def compatible(other: ProtocolVersion) -> bool:
    """True when a message of version ``other`` can be read here."""
    return other.major == MAJOR

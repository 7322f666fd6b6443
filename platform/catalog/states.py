"""States of this room, their edges and who moves each (pure).

Model version: ``uploading`` (its owner uploads files) → ``validating`` (the owner finalizes) → ``ready`` | ``rejected``
(the check decides, with a reason; an upload that nobody finishes is rejected by the expiry loop) ; ``ready`` →
``archived`` (the owner). Upload: ``open`` → ``complete`` (all bytes are there and have the declared digest) |
``aborted`` (the owner, a new upload of the same file, or a wrong digest) | ``expired`` (the expiry loop).
"""

import enum
from typing import Final

from kernel.machine import Transitions


class VersionState(enum.StrEnum):
    """Where a model version stands."""

    UPLOADING = "uploading"
    VALIDATING = "validating"
    READY = "ready"
    REJECTED = "rejected"
    ARCHIVED = "archived"


class UploadState(enum.StrEnum):
    """Where an upload stands."""

    OPEN = "open"
    COMPLETE = "complete"
    ABORTED = "aborted"
    EXPIRED = "expired"


VERSION: Final[Transitions[VersionState]] = Transitions(
    "model_version",
    {
        VersionState.UPLOADING: {VersionState.VALIDATING, VersionState.REJECTED},
        VersionState.VALIDATING: {VersionState.READY, VersionState.REJECTED},
        VersionState.READY: {VersionState.ARCHIVED},
        VersionState.REJECTED: set(),
        VersionState.ARCHIVED: set(),
    },
)
UPLOAD: Final[Transitions[UploadState]] = Transitions(
    "upload",
    {
        UploadState.OPEN: {UploadState.COMPLETE, UploadState.ABORTED, UploadState.EXPIRED},
        UploadState.COMPLETE: set(),
        UploadState.ABORTED: set(),
        UploadState.EXPIRED: set(),
    },
)

# Versions whose declared bytes count against the storage quota; those of a rejected one are dropped.
CHARGED: Final = frozenset({VersionState.UPLOADING, VersionState.VALIDATING, VersionState.READY, VersionState.ARCHIVED})

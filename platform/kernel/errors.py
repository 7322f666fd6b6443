"""One tree of errors: ``code`` and ``data`` for programs, a sentence for people.

PlatformError
├── InvalidInput          400  something in the request is wrong; ``data["field"]`` names it where one is
├── Unauthenticated       401
├── Forbidden             403  existence is no secret, the role does not suffice
│   └── QuotaExceeded     403  ``data``: quota, limit, used, asked
├── NotFound              404  also what belongs to another tenant
├── Conflict              409
│   └── StaleTransition   409  the row was not in a state that allows the move
├── Gone                  410
├── PreconditionFailed    412
├── TooLarge              413
├── Unprocessable         422
├── TooManyRequests       429
└── Unavailable           503  retry later
"""

from collections.abc import Mapping
from typing import Any, ClassVar


class PlatformError(Exception):
    """Base of everything that is answered to a caller. Subclasses set ``status`` and a default ``code``."""

    status: ClassVar[int] = 500
    code: str = "internal_error"
    title: ClassVar[str] = "Internal error"

    def __init__(self, detail: str, *, code: str = "", data: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        if code:
            self.code = code
        self.data: dict[str, Any] = dict(data or {})


class InvalidInput(PlatformError):
    status = 400
    code = "invalid_input"
    title = "Invalid input"


class Unauthenticated(PlatformError):
    status = 401
    code = "unauthenticated"
    title = "Not signed in"


class Forbidden(PlatformError):
    status = 403
    code = "forbidden"
    title = "Not allowed"


class QuotaExceeded(Forbidden):
    code = "quota_exceeded"
    title = "Quota exceeded"


class NotFound(PlatformError):
    status = 404
    code = "not_found"
    title = "Not found"


class Conflict(PlatformError):
    status = 409
    code = "conflict"
    title = "Conflict"


class StaleTransition(Conflict):
    code = "stale_transition"
    title = "State has changed"


class Gone(PlatformError):
    status = 410
    code = "gone"
    title = "Gone"


class PreconditionFailed(PlatformError):
    status = 412
    code = "precondition_failed"
    title = "Precondition failed"


class TooLarge(PlatformError):
    status = 413
    code = "too_large"
    title = "Too large"


class Unprocessable(PlatformError):
    status = 422
    code = "unprocessable"
    title = "Cannot be processed"


class TooManyRequests(PlatformError):
    status = 429
    code = "too_many_requests"
    title = "Too many requests"


class Unavailable(PlatformError):
    status = 503
    code = "unavailable"
    title = "Unavailable"

"""Why a request is refused, before any dialect gives it a shape."""

import enum
import math


class Reason(enum.StrEnum):
    """Typed reasons; also the ``reason`` label of the refusal metric, so this list bounds it."""

    UNAUTHENTICATED = "unauthenticated"
    TENANT_INACTIVE = "tenant_inactive"
    TABLE_TOO_OLD = "table_too_old"
    NO_TABLE = "no_table"
    REMOVED = "gateway_removed"
    BAD_REQUEST = "bad_request"
    TOO_LARGE = "too_large"
    HEADERS_TOO_LARGE = "headers_too_large"
    BODY_TIMEOUT = "body_timeout"
    ROUTE_NOT_FOUND = "route_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    RATE_LIMITED = "rate_limited"
    NEVER_FITS_LIMIT = "never_fits_limit"
    BUDGET_EXCEEDED = "budget_exceeded"
    LIMITS_UNAVAILABLE = "limits_unavailable"
    ADDRESS_NOT_ALLOWED = "address_not_allowed"
    CRITICALITY_NOT_ALLOWED = "criticality_not_allowed"
    REVISION_NOT_ALLOWED = "revision_not_allowed"
    REVISION_NOT_FOUND = "revision_not_found"
    REVISION_NOT_READY = "revision_not_ready"
    OVERLOADED = "overloaded"
    JOURNAL_FULL = "journal_full"
    NOT_READY = "not_ready"
    CIRCUIT_OPEN = "circuit_open"
    DEADLINE = "deadline"
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    UPSTREAM_FAILED = "upstream_failed"
    DRAINING = "draining"
    INTERNAL = "internal"


class Refusal(Exception):
    """The request gets no answer from a model. ``message`` is a sentence for the caller and holds no secret.

    ``code`` is the machine code in the caller's dialect where it differs from the reason; ``param`` names the
    offending field; ``retry_after`` is in seconds and is only given where coming back then can help.
    """

    def __init__(
        self,
        reason: Reason,
        status: int,
        message: str,
        *,
        code: str = "",
        param: str | None = None,
        retry_after: float | None = None,
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        self.message = message
        self.code = code or reason.value
        self.param = param
        self.retry_after = retry_after
        self.headers = headers or []

    def all_headers(self) -> list[tuple[bytes, bytes]]:
        """Response headers that go with the refusal."""
        if self.retry_after is None:
            return self.headers
        seconds = max(1, math.ceil(self.retry_after))
        return [*self.headers, (b"retry-after", str(seconds).encode())]

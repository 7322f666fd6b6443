"""What can go wrong in an engine, as one tree.

    EngineError
    ├── RequestError      one request is refused or ended; the engine goes on
    │                     InvalidRequest, NotFound, Overloaded, Unavailable, DeadlineExceeded, Cancelled, ...
    └── StartError        the engine cannot serve this model here; the process ends with EXIT_START_FAILED

``code`` is for programs, the message for people and says what to do.
"""

from typing import ClassVar, Final

EXIT_START_FAILED: Final = 3


class EngineError(Exception):
    """Base of everything an engine reports."""


class RequestError(EngineError):
    """One request cannot be served. Carries what OpenAI's error object needs."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"

    def __init__(self, message: str, *, code: str, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after


class InvalidRequest(RequestError):
    """The request itself is wrong; sending it again will not help."""

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message, code=code, param=param)


class BodyTooLong(InvalidRequest):
    """The body has more bytes than the engine reads."""

    status = 413


class Unauthenticated(RequestError):
    """The bearer token of this port is missing or wrong."""

    status = 401
    kind = "authentication_error"


class NotFound(RequestError):
    """No such path, model or request."""

    status = 404
    kind = "invalid_request_error"


class MethodNotAllowed(RequestError):
    """The path exists, the method does not."""

    status = 405
    kind = "invalid_request_error"


class Conflict(RequestError):
    """What is asked for does not go together with what the engine is doing."""

    status = 409
    kind = "conflict_error"


class Overloaded(RequestError):
    """The waiting queue is full; ``retry_after`` says when to come back."""

    status = 503
    kind = "overloaded_error"


class Unavailable(RequestError):
    """The engine is loading, draining or has failed."""

    status = 503
    kind = "unavailable_error"


class DeadlineExceeded(RequestError):
    """The caller's deadline passed before the request was done."""

    status = 504
    kind = "timeout_error"


class Cancelled(RequestError):
    """Somebody ended the request: its caller, or the gateway for it."""

    status = 499
    kind = "request_cancelled"


class RequestFailed(RequestError):
    """The engine lost this request; the caller is not to blame."""


class StartError(EngineError):
    """The engine cannot start. ``reason`` is PascalCase and goes into the report as it is."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message

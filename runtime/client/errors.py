"""What goes wrong in the command line, and the exit code that says so.

0 done · 1 refused or failed by the platform (also where no engine runs the model) · 2 wrong use of the command ·
3 not signed in, or not allowed · 4 not found · 5 the platform cannot be reached · 6 what was waited for did not come,
or has no place now · 130 interrupted
"""

import enum
from collections.abc import Mapping
from typing import Any


class Exit(enum.IntEnum):
    """Exit codes; scripts may rely on them."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_ALLOWED = 3
    NOT_FOUND = 4
    UNREACHABLE = 5
    NOT_REACHED = 6
    INTERRUPTED = 130


class ClientError(Exception):
    """A sentence for people, and the exit code."""

    exit_code = Exit.FAILED

    def __init__(self, message: str, *, exit_code: Exit | None = None) -> None:
        super().__init__(message)
        if exit_code is not None:
            self.exit_code = exit_code


class UsageError(ClientError):
    """The command was given something that cannot be."""

    exit_code = Exit.USAGE


class ConfigError(ClientError):
    """The configuration file cannot be read or written."""

    exit_code = Exit.USAGE


class NotSignedIn(ClientError):
    """There is no credential to call with."""

    exit_code = Exit.NOT_ALLOWED


class Unreachable(ClientError):
    """No answer from the server."""

    exit_code = Exit.UNREACHABLE


class NotReached(ClientError):
    """What was waited for ended otherwise, or did not come in time."""

    exit_code = Exit.NOT_REACHED


class ApiError(ClientError):
    """The platform said no. ``code`` and ``data`` are for programs, the message is for people."""

    def __init__(
        self, *, status: int, code: str, title: str, detail: str, request_id: str, data: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(detail or title)
        self.status = status
        self.code = code
        self.title = title
        self.request_id = request_id
        self.data = dict(data or {})
        self.exit_code = Exit.FAILED if code in _LIMITS else _EXIT_OF.get(status, Exit.FAILED)


#: Refusals for what is held or used, not for who asks: the same for everybody.
_LIMITS = frozenset({"quota_exceeded", "budget_exceeded"})
_EXIT_OF = {
    401: Exit.NOT_ALLOWED,
    403: Exit.NOT_ALLOWED,
    404: Exit.NOT_FOUND,
    502: Exit.UNREACHABLE,
    503: Exit.UNREACHABLE,
    504: Exit.UNREACHABLE,
}

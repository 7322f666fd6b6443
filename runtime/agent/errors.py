"""What can go wrong in the agent.

AgentError
├─ SettingsError        a setting that cannot be used: the process does not start
├─ AlreadyRunning       another agent holds the state folder
├─ Fault                why one replica cannot go on; carries the PascalCase reason that is reported
└─ LinkError            a call to the control plane
   ├─ Unreachable       no answer, or a 5xx: try again later
   └─ Refused           an answer that says no, with the wire's code
"""

import enum

from runtime.wire.errors import ErrorCode


class AgentError(Exception):
    """Base of everything the agent raises on purpose."""


class SettingsError(AgentError):
    """A setting is missing or out of range; the text names the variable."""


class AlreadyRunning(AgentError):
    """Another agent holds the lock of this state folder."""


class Retry(enum.StrEnum):
    """What helps against a fault."""

    SOON = "soon"  # nothing is wrong with the replica: try again, its phase stays
    LATER = "later"  # failed; try again after the back-off
    NEVER = "never"  # failed until a new generation arrives


class Fault(AgentError):
    """One replica cannot go on. ``reason`` is PascalCase, ``message`` a sentence saying what to do."""

    def __init__(self, reason: str, message: str, retry: Retry = Retry.LATER) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.retry = retry


class LinkError(AgentError):
    """A call to the control plane did not succeed. ``retry_after``: seconds that it asks to be left alone."""

    retry_after: float = 0.0


class Unreachable(LinkError):
    """No usable answer; engines go on and the call is repeated with growing pauses."""

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Refused(LinkError):
    """The control plane said no."""

    def __init__(self, status: int, code: ErrorCode, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message

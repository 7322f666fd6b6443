"""When the person behind a browser session last proved who they are: before secrets, lately is not "some time ago".

allauth keeps the proofs in the session (password, code, the company's sign-in). A token or key proves itself with
every call and is not asked.
"""

from typing import Final

from allauth.account.authentication import get_authentication_records
from django.http import HttpRequest

from kernel import clock
from tenants.errors import AuthenticationTooOld
from tenants.models import User

RECENT_SECONDS: Final = 300
# A form that was opened in time may be sent a while later.
FORM_SECONDS: Final = 900


def age_seconds(request: HttpRequest, user: User | None = None) -> float | None:
    """Seconds since the last proof of ``user`` (the request's) in this session; ``None`` where there is none."""
    records = get_authentication_records(request, user or request.user)
    moments = [float(record["at"]) for record in records if isinstance(record.get("at"), int | float)]
    return clock.now().timestamp() - max(moments) if moments else None


def is_recent(request: HttpRequest, within: int = RECENT_SECONDS, user: User | None = None) -> bool:
    """Whether the last proof is at most ``within`` seconds old."""
    age = age_seconds(request, user)
    return age is not None and age <= within


def require_recent(request: HttpRequest, user: User) -> None:
    """Raise :class:`AuthenticationTooOld` unless the proof of ``user`` in this session is as recent as a form's."""
    if not is_recent(request, FORM_SECONDS, user):
        raise AuthenticationTooOld("Confirm that it is you first: your last sign-in was too long ago for secrets.")

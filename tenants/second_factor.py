"""Codes from an authenticator app beside the password: who has them, who must, and whether one is right.

The rows are allauth's (``allauth.mfa``); the console enrols through its pages. ``REQUIRE_SECOND_FACTOR`` is ``none``,
``admins`` (platform admins) or ``everyone``: who must and has none gets no actor, so neither a page, a socket nor REST.
"""

from typing import Final

from allauth.mfa.models import Authenticator
from django.conf import settings

from kernel import errors
from tenants import pacing
from tenants.errors import SecondFactorMissing
from tenants.models import User

CHOICES: Final = ("none", "admins", "everyone")


def is_enrolled(user: User) -> bool:
    """Whether signing in asks for a code."""
    return bool(Authenticator.objects.filter(user=user, type=Authenticator.Type.TOTP).exists())


def codes_left(user: User) -> int:
    """How many recovery codes were not used yet."""
    row = Authenticator.objects.filter(user=user, type=Authenticator.Type.RECOVERY_CODES).first()
    return len(row.wrap().get_unused_codes()) if row is not None else 0


def is_required_of(user: User) -> bool:
    """Whether the platform wants one of ``user``."""
    rule = settings.REQUIRE_SECOND_FACTOR
    return rule == "everyone" or (rule == "admins" and user.is_staff)


def require(user: User) -> None:
    """Raise :class:`SecondFactorMissing` where one is required and not there."""
    if is_required_of(user) and not is_enrolled(user):
        raise SecondFactorMissing(
            "This platform asks you for a second factor: sign in to the console and set up an authenticator app."
        )


def check_code(user: User, code: str) -> None:
    """Raise unless ``code`` is the authenticator's now, or a recovery code that was not used (it is used now).

    Raises:
        errors.Unauthenticated: ``second_factor_wrong``.
        TooManyAttempts: too many wrong ones.
    """
    pacing.take(pacing.CODE_OF, user.id)
    for row in Authenticator.objects.filter(user=user):
        if row.type in (Authenticator.Type.TOTP, Authenticator.Type.RECOVERY_CODES) and row.wrap().validate_code(code):
            row.record_usage()
            pacing.give_back(pacing.CODE_OF, user.id)
            return
    raise errors.Unauthenticated("The code is wrong, or was used already.", code="second_factor_wrong")


def forget(user: User) -> int:
    """Take all factors away; return how many rows there were."""
    return int(Authenticator.objects.filter(user=user).delete()[0])

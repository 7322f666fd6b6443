"""Signing in with a password, the same for the console and for REST: the pace of failures, and the work of a try.

Failures are counted before the password is looked at, so that parallel guesses cannot slip through, and given back on
success. Three counters: of one address, of one account from one address, and of one account from everywhere.
"""

from kernel import errors
from tenants import pacing, second_factor
from tenants.models import User


def begin(email: str, address: str) -> None:
    """Count a try.

    Raises:
        TooManyAttempts: the address or the account has had too many failures; ``data["retry_after"]`` says how long.
    """
    network = pacing.network_of(address)
    pacing.take(pacing.SIGN_IN_FROM, network)
    pacing.take(pacing.SIGN_IN_OF_FROM, email, network)
    pacing.take(pacing.SIGN_IN_OF, email)


def succeeded(email: str, address: str) -> None:
    """The try was no failure."""
    network = pacing.network_of(address)
    pacing.give_back(pacing.SIGN_IN_FROM, network)
    pacing.give_back(pacing.SIGN_IN_OF_FROM, email, network)
    pacing.give_back(pacing.SIGN_IN_OF, email)


def check_password(email: str, password: str, code: str, address: str) -> User:
    """The active user with this address, password and, where one is set up, second factor.

    Raises:
        errors.Unauthenticated: ``wrong_credentials``, ``second_factor_needed`` (the password was right),
            ``second_factor_wrong``.
        SecondFactorMissing: the platform wants one of this user, who has none yet.
        TooManyAttempts: see :func:`begin`.
    """
    begin(email, address)
    user = User.objects.filter(email__iexact=email, is_active=True).first()
    if user is None:
        User().set_password(password)  # the same work as for a known address: no oracle for who has an account
    if user is None or not user.check_password(password):
        raise errors.Unauthenticated("The e-mail address or the password is wrong.", code="wrong_credentials")
    if second_factor.is_enrolled(user):
        if not code:
            succeeded(email, address)
            raise errors.Unauthenticated(
                "This account has a second factor: send the code of the authenticator app as `code`.",
                code="second_factor_needed",
            )
        second_factor.check_code(user, code)
    succeeded(email, address)
    second_factor.require(user)
    return user

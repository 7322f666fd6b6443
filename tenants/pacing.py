"""How often something may be tried: counters in the shared cache, each gone soon after its window.

A window is fixed (``now // seconds``), so a burst over its edge can be twice the amount; that is bounded, and the
answer can say exactly when to retry. Counting is one atomic step: parallel tries cannot pass together.
"""

import dataclasses
import hashlib
import ipaddress
from typing import Final

from django.core.cache import cache
from redis.exceptions import RedisError

from kernel import clock
from kernel.errors import Unavailable
from tenants.errors import TooManyAttempts


@dataclasses.dataclass(frozen=True)
class Pace:
    """At most ``amount`` times in ``seconds``."""

    name: str
    amount: int
    seconds: int


SIGN_IN_FROM: Final = Pace("sign-in-from", 30, 300)  # failures from one address
SIGN_IN_OF_FROM: Final = Pace("sign-in-of-from", 5, 300)  # failures of one account from one address
SIGN_IN_OF: Final = Pace("sign-in-of", 50, 900)  # failures of one account from everywhere
CODE_OF: Final = Pace("code-of", 10, 300)  # wrong second factors of one account
INVITE: Final = Pace("invite", 60, 3600)  # invitations of one tenant
INVITE_TO: Final = Pace("invite-to", 10, 24 * 3600)  # invitations to one address, by everybody
LINK_FROM: Final = Pace("link-from", 30, 300)  # tries of one-time links from one address


def take(pace: Pace, *of: object) -> None:
    """Count one try.

    Raises:
        TooManyAttempts: it is one too many; ``data["retry_after"]`` says in how many seconds the window ends.
        Unavailable: the shared cache does not answer.
    """
    key, left = _window(pace, of)
    try:
        cache.add(key, 0, timeout=pace.seconds + 60)
        count = _raise_count(key)
    except (RedisError, OSError):  # without counting there is no guard: better nobody than anybody
        raise Unavailable("Attempts cannot be counted now; try again.", data={"retry_after": 5}) from None
    if count > pace.amount:
        minutes = -(-left // 60)
        raise TooManyAttempts(
            f"Too many attempts. Try again in {minutes} minute{'s' if minutes > 1 else ''}.",
            data={"retry_after": left},
        )


def give_back(pace: Pace, *of: object) -> None:
    """What was counted did not count after all (a sign-in that succeeded)."""
    key, _left = _window(pace, of)
    try:
        cache.decr(key)
    except (ValueError, RedisError, OSError):  # the window has ended since, or the cache is away: it counts
        return


def _raise_count(key: str) -> int:
    try:
        return int(cache.incr(key))
    except ValueError:  # it went between adding and counting
        cache.set(key, 1, timeout=60)
        return 1


def _window(pace: Pace, of: tuple[object, ...]) -> tuple[str, int]:
    now = int(clock.now().timestamp())
    text = "\0".join(str(part).lower() for part in of)
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]
    return f"pace:{pace.name}:{now // pace.seconds}:{digest}", pace.seconds - now % pace.seconds


def network_of(address: str) -> str:
    """What stands for a caller: an IPv4 address, or the /64 that one IPv6 customer is given."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False).network_address)
    return str(parsed)

"""What a key may, as one value: checked, compared with the key that asks, and read off a row (pure)."""

import dataclasses
import datetime
import ipaddress
from collections.abc import Iterable, Sequence
from typing import Any, Final

from kernel import errors
from tenants.models import ApiKey, BudgetPeriod, BudgetUnit, Criticality, Limited

MAX_BUDGET: Final = 10**15
MAX_ADDRESSES: Final = 50
MAX_ENDPOINTS: Final = 100
#: rate limits with the largest number the column takes
RATES: Final = {"requests_per_minute": 10**9, "tokens_per_minute": 2 * 10**9, "max_parallel_requests": 10**6}
#: What REST, command line and console call each; users know these names.
PUBLIC_NAMES: Final = {
    "requests_per_minute": "rpm_limit",
    "tokens_per_minute": "tpm_limit",
    "max_parallel_requests": "max_parallel_requests",
    "budget": "max_budget",
    "expires_at": "expires_at",
    "allowed_endpoints": "allowed_endpoints",
    "allowed_addresses": "allowed_addresses",
    "criticalities": "criticalities",
}

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """``limit`` is in tokens, or in millionths of the currency; ``blocks`` false only alerts."""

    limit: int
    unit: str = BudgetUnit.TOKENS.value
    duration: str = BudgetPeriod.MONTH.value
    blocks: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Rate limits and budget of a key or a tenant; ``None`` is unlimited."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_parallel_requests: int | None = None
    budget: Budget | None = None

    def columns(self) -> dict[str, Any]:
        """The row's columns."""
        budget = self.budget or Budget(limit=1)
        return {
            **{name: getattr(self, name) for name in RATES},
            "budget_limit": self.budget.limit if self.budget else None,
            "budget_unit": budget.unit,
            "budget_duration": budget.duration,
            "budget_blocks": budget.blocks,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Terms(Limits):
    """Everything that can be changed of a key; empty lists are "all" and "any", but for ``criticalities``: none."""

    expires_at: datetime.datetime | None = None
    allowed_endpoints: tuple[str, ...] = ()
    allowed_addresses: tuple[str, ...] = ()
    criticalities: tuple[str, ...] = ()

    def columns(self) -> dict[str, Any]:
        """The row's columns."""
        return {
            **super().columns(),
            "expires_at": self.expires_at,
            "allowed_endpoints": list(self.allowed_endpoints),
            "allowed_addresses": list(self.allowed_addresses),
            "criticalities": list(self.criticalities),
        }


def budget_of(row: Limited) -> Budget | None:
    """The budget of a row."""
    if row.budget_limit is None:
        return None
    return Budget(limit=row.budget_limit, unit=row.budget_unit, duration=row.budget_duration, blocks=row.budget_blocks)


def limits_of(row: Limited) -> Limits:
    """The limits of a row."""
    return Limits(**{name: getattr(row, name) for name in RATES}, budget=budget_of(row))


def terms_of(key: ApiKey) -> Terms:
    """The terms of a key."""
    return Terms(
        **{name: getattr(key, name) for name in RATES},
        budget=budget_of(key),
        expires_at=key.expires_at,
        allowed_endpoints=tuple(key.allowed_endpoints),
        allowed_addresses=tuple(key.allowed_addresses),
        criticalities=tuple(key.criticalities),
    )


def check_limits(limits: Limits) -> None:
    """Raise :class:`errors.InvalidInput` unless every number is within what can be counted."""
    for name, most in RATES.items():
        value = getattr(limits, name)
        if value is not None and not 1 <= value <= most:
            raise _wrong(name, f"is a number from 1 to {most}, or nothing for no limit")
    budget = limits.budget
    if budget is None:
        return
    if not 1 <= budget.limit <= MAX_BUDGET:
        raise _wrong("budget", f"is from 1 to {MAX_BUDGET} (tokens, or millionths of the currency)")
    if budget.unit not in BudgetUnit.values:
        raise errors.InvalidInput(f"A budget counts {' or '.join(BudgetUnit.values)}.", data={"field": "budget_unit"})
    if budget.duration not in BudgetPeriod.values:
        raise errors.InvalidInput(
            f"A budget's duration is one of {', '.join(BudgetPeriod.values)}.", data={"field": "budget_duration"}
        )


def checked(terms: Terms, *, now: datetime.datetime) -> Terms:
    """``terms`` with addresses in one spelling and no repetitions.

    Raises:
        errors.InvalidInput: a value that cannot be; ``data["field"]`` names it.
    """
    check_limits(terms)
    if terms.expires_at is not None and terms.expires_at <= now:
        raise errors.InvalidInput("The expiry lies in the past.", data={"field": "expires_at"})
    if unknown := set(terms.criticalities) - set(Criticality.values):
        raise _wrong("criticalities", f"knows {', '.join(Criticality.values)}, not {sorted(unknown)[0][:40]!r}")
    if len(terms.allowed_endpoints) > MAX_ENDPOINTS:
        raise _wrong("allowed_endpoints", f"takes at most {MAX_ENDPOINTS} names")
    if len(terms.allowed_addresses) > MAX_ADDRESSES:
        raise _wrong("allowed_addresses", f"takes at most {MAX_ADDRESSES} networks")
    return dataclasses.replace(
        terms,
        allowed_addresses=_once(str(_network(text)) for text in terms.allowed_addresses),
        allowed_endpoints=_once(terms.allowed_endpoints),
        criticalities=_once(sorted(terms.criticalities)),
    )


def _wrong(name: str, text: str) -> errors.InvalidInput:
    public = PUBLIC_NAMES[name]
    return errors.InvalidInput(f"{public} {text}.", data={"field": public})


def _once(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))


def _network(text: str) -> _Network:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise _wrong(
            "allowed_addresses", f"takes networks like 10.0.0.0/8 or 2001:db8::/32, not {text[:60]!r}"
        ) from None


def admits(networks: Sequence[str], address: str) -> bool:
    """True when ``networks`` is empty, or one of them holds ``address``."""
    if not networks:
        return True
    try:
        peer = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(peer, ipaddress.IPv6Address) and peer.ipv4_mapped is not None:
        peer = peer.ipv4_mapped
    return any(peer in ipaddress.ip_network(text) for text in networks)


def within(asked: Terms, giver: Terms) -> Terms:
    """``asked``, with what it leaves open taken from ``giver``: a key gives no more than it has."""
    taken = {
        name: getattr(giver, name) for name in PUBLIC_NAMES if not getattr(asked, name) and name != "criticalities"
    }
    return dataclasses.replace(asked, **taken)


def wider(asked: Terms, giver: Terms) -> list[str]:
    """Public names of what ``asked`` allows beyond ``giver``; empty when it is the same or narrower."""
    found = [name for name in RATES if _above(getattr(asked, name), getattr(giver, name))]
    if giver.budget is not None and not _budget_fits(asked.budget, giver.budget):
        found.append("budget")
    if giver.expires_at is not None and (asked.expires_at is None or asked.expires_at > giver.expires_at):
        found.append("expires_at")
    if giver.allowed_endpoints and not (
        asked.allowed_endpoints and set(asked.allowed_endpoints) <= set(giver.allowed_endpoints)
    ):
        found.append("allowed_endpoints")
    if giver.allowed_addresses and not _addresses_fit(asked.allowed_addresses, giver.allowed_addresses):
        found.append("allowed_addresses")
    if not set(asked.criticalities) <= set(giver.criticalities):
        found.append("criticalities")
    return [PUBLIC_NAMES[name] for name in found]


def _above(asked: int | None, most: int | None) -> bool:
    return most is not None and (asked is None or asked > most)


def _budget_fits(asked: Budget | None, most: Budget) -> bool:
    if asked is None or (asked.unit, asked.duration) != (most.unit, most.duration):
        return False
    return asked.limit <= most.limit and (asked.blocks or not most.blocks)


def _addresses_fit(asked: Sequence[str], most: Sequence[str]) -> bool:
    allowed = [_network(text) for text in most]
    return bool(asked) and all(any(_inside(_network(text), wide) for wide in allowed) for text in asked)


def _inside(narrow: _Network, wide: _Network) -> bool:
    if isinstance(narrow, ipaddress.IPv4Network) and isinstance(wide, ipaddress.IPv4Network):
        return narrow.subnet_of(wide)
    if isinstance(narrow, ipaddress.IPv6Network) and isinstance(wide, ipaddress.IPv6Network):
        return narrow.subnet_of(wide)
    return False

"""Limits in words and headers: what a caller is told, whichever counters decided. Pure."""

import math
from collections.abc import Sequence
from typing import Final

from runtime.gateway.limits.terms import Headers, Standing, Subject, Verdict
from runtime.gateway.refusals import Reason, Refusal

_NO_RETRY: Final = (b"x-should-retry", b"false")
_SOON: Final = 60.0  # official clients wait this long at most; beyond it retrying by themselves is of no use
_MOST_WAIT: Final = 60  # likewise: what is left of the last quarter second's bucket is not worth losing them
_Row = tuple[int, int, float]  # what is left, of what, and seconds until all of it is there again
_REQUESTS: Final = (b"x-ratelimit-limit-requests", b"x-ratelimit-remaining-requests", b"x-ratelimit-reset-requests")
_TOKENS: Final = (b"x-ratelimit-limit-tokens", b"x-ratelimit-remaining-tokens", b"x-ratelimit-reset-tokens")
_WHAT: Final = {
    "parallel": ("parallel requests", "max_parallel_requests"),
    "requests": ("requests per minute", "rpm_limit"),
    "tokens": ("tokens per minute", "tpm_limit"),
}


def describe(subjects: Sequence[Subject], standings: Sequence[Standing]) -> Headers:
    """OpenAI's ``x-ratelimit-*`` of the tighter of the key's and the tenant's limit, and the same for budgets."""
    requests: _Row | None = None
    tokens: _Row | None = None
    for subject, standing in zip(subjects, standings, strict=True):
        limit = subject.limits.requests_per_minute
        if limit is not None:
            row = (limit - standing.requests, limit, standing.reset)
            if requests is None or row < requests:
                requests = row
        limit = subject.limits.tokens_per_minute
        if limit is not None:
            row = (limit - standing.tokens, limit, standing.reset)
            if tokens is None or row < tokens:
                tokens = row
    return _rate(_REQUESTS, requests) + _rate(_TOKENS, tokens) + _budgets(subjects, standings)


def _rate(names: tuple[bytes, bytes, bytes], row: _Row | None) -> Headers:
    if row is None:
        return []
    left, limit, reset = row
    return [(names[0], b"%d" % limit), (names[1], b"%d" % max(0, left)), (names[2], b"%ds" % math.ceil(reset))]


def alerts(subjects: Sequence[Subject], standings: Sequence[Standing]) -> list[str]:
    """Words of the subjects whose budget only alerts and is used up."""
    return [
        subject.word
        for subject, standing in zip(subjects, standings, strict=True)
        if subject.budget is not None
        and not subject.budget.budget.blocks
        and standing.used + standing.held > subject.budget.limit
    ]


def _budgets(subjects: Sequence[Subject], standings: Sequence[Standing]) -> Headers:
    rows: list[tuple[float, bytes, int, int]] = []
    for subject, standing in zip(subjects, standings, strict=True):
        if (term := subject.budget) is not None:
            left = max(0, term.limit - standing.used - standing.held) // term.scale
            share = left / term.budget.limit if term.budget.limit else 0.0
            rows.append((share, term.budget.unit.encode(), term.budget.limit, left))
    if not rows:
        return []
    _, unit, limit, left = min(rows)
    headers = [
        (b"x-millpond-budget-limit", b"%d" % limit),
        (b"x-millpond-budget-remaining", b"%d" % left),
        (b"x-millpond-budget-unit", unit),
    ]
    if over := alerts(subjects, standings):
        headers.append((b"x-millpond-budget-alert", ",".join(over).encode()))
    return headers


def refusal(
    verdict: Verdict, subjects: Sequence[Subject], standings: Sequence[Standing], now: float, *, shared: bool
) -> Refusal:
    """Say which limit refused, what is in use, and when coming back helps."""
    subject = subjects[verdict.subject]
    headers = describe(subjects, standings)
    if verdict.kind == "budget":
        return _budget(verdict, subject, headers, now)
    what, name = _WHAT[verdict.kind]
    limit = {
        "parallel": subject.limits.max_parallel_requests,
        "requests": subject.limits.requests_per_minute,
        "tokens": subject.limits.tokens_per_minute,
    }[verdict.kind]
    wait = min(_MOST_WAIT, max(1, math.ceil(verdict.wait)))
    alone = "" if shared else " Shared counters are unreachable, and this gateway allows its share of it."
    return Refusal(
        Reason.RATE_LIMITED,
        429,
        f"The {subject.word}'s limit of {limit} {what} is reached ({verdict.used} in use). "
        f"Try again in {wait} s.{alone}",
        code="rate_limit_exceeded",
        param=name,
        retry_after=wait,
        headers=headers,
    )


def never_fits(subject: Subject, tokens: int) -> Refusal:
    """The request is larger than the whole limit: waiting does not help, so no ``Retry-After`` would hold."""
    return Refusal(
        Reason.NEVER_FITS_LIMIT,
        429,
        f"This request may use up to {tokens} tokens, more than the {subject.word}'s whole limit of "
        f"{subject.limits.tokens_per_minute} tokens per minute. Shorten the prompt, or lower max_tokens or n.",
        code="request_too_large",
        param="tpm_limit",
        headers=[(_TOKENS[0], b"%d" % (subject.limits.tokens_per_minute or 0)), _NO_RETRY],
    )


def _budget(verdict: Verdict, subject: Subject, headers: Headers, now: float) -> Refusal:
    term = subject.budget
    assert term is not None  # only a budget refuses with this kind
    unit = "tokens" if term.scale == 1 else "millionths of the currency"
    every = f" per {term.budget.period}" if term.budget.period else ""
    used, held = verdict.used / term.scale, verdict.wait / term.scale
    text = (
        f"The {subject.word}'s budget of {term.budget.limit} {unit}{every} does not cover this request "
        f"({used:.0f} used, {held:.0f} held by running requests)."
    )
    if verdict.used < term.limit:
        text += f" It could come to {math.ceil(verdict.ask / term.scale)}: lower max_tokens or n."
    if verdict.wait > 0 and verdict.used + verdict.ask <= term.limit:
        # What running requests do not use comes back when they end.
        return Refusal(
            Reason.BUDGET_EXCEEDED,
            429,
            text + " Try again when running requests have ended.",
            code="budget_exceeded",
            param="max_budget",
            retry_after=1,
            headers=headers,
        )
    if verdict.ask > term.limit:
        return Refusal(
            Reason.BUDGET_EXCEEDED,
            403,
            text + " That is more than the whole budget: waiting does not help.",
            code="budget_exceeded",
            param="max_budget",
            headers=[*headers, _NO_RETRY],
        )
    if term.period.end:
        wait = max(1.0, term.period.end - now)
        return Refusal(
            Reason.BUDGET_EXCEEDED,
            429,
            text + f" A new period begins in {math.ceil(wait)} s.",
            code="budget_exceeded",
            param="max_budget",
            retry_after=wait,
            headers=headers if wait <= _SOON else [*headers, _NO_RETRY],
        )
    return Refusal(
        Reason.BUDGET_EXCEEDED,
        403,
        text + " It has no period that ends: have it raised.",
        code="budget_exceeded",
        param="max_budget",
        headers=[*headers, _NO_RETRY],
    )


def unavailable() -> Refusal:
    """Shared counters cannot be reached, and the settings say to refuse then."""
    return Refusal(
        Reason.LIMITS_UNAVAILABLE,
        503,
        "The shared counters of limits cannot be reached, and this gateway does not serve limited keys without them.",
        code="limits_unavailable",
        retry_after=2,
    )

"""The steps of a rollout and what they cost (pure)."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kernel import errors
from kernel.texts import counted
from rollouts.models import Capacity, Strategy

CANARY_SHARES: Final = (5, 25, 50, 100)
MAX_STEPS: Final = 20
MAX_HOLD_SECONDS: Final = 86_400
MAX_REQUESTS: Final = 1_000_000


@dataclasses.dataclass(frozen=True)
class Step:
    """One step: get replicas ready, set the weight, hold, judge.

    ``share`` is the candidate's part of the traffic in percent. ``candidate_replicas`` must be ready before the share
    is set. ``baseline_before`` is how far the baseline shrinks before the candidate gets its replicas (only where the
    owner accepted that), ``baseline_after`` how far once the share is set. The step is held for ``hold_seconds`` and
    until ``min_requests`` have ended on each side; ``judged`` asks the judge.
    """

    share: int
    candidate_replicas: int
    baseline_before: int
    baseline_after: int
    hold_seconds: int
    min_requests: int
    judged: bool = True

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "Step":
        """From a stored plan."""
        return cls(**values)


@dataclasses.dataclass(frozen=True)
class Plan:
    """``extra_replicas`` is how many more than now run at the peak. ``gap`` says what the owner must accept, or ""."""

    steps: tuple[Step, ...]
    extra_replicas: int
    gap: str


def make(
    *,
    strategy: Strategy,
    capacity: Capacity,
    endpoint: str,
    baseline: int,
    candidate: int,
    shares: Sequence[int] = (),
    hold_seconds: int = 300,
    min_requests: int = 100,
) -> Plan:
    """The plan of a strategy for ``baseline`` replicas that serve now and ``candidate`` wanted at the end.

    Raises:
        errors.InvalidInput: shares that do not rise to 100, or a capacity that the baseline is too small for.
    """
    _check(shares, hold_seconds, min_requests, baseline, candidate, capacity)
    hold = (hold_seconds, min_requests)
    if capacity is Capacity.IN_PLACE:
        steps = [Step(100, candidate, 0, 0, *hold)]
    elif strategy is Strategy.ROLLING:
        steps = _rolling(baseline, candidate, capacity, hold)
    elif strategy is Strategy.BLUE_GREEN:
        kept = baseline - 1 if capacity is Capacity.SQUEEZE else baseline
        steps = [Step(100, candidate, kept, kept, *hold)]
    else:
        kept = baseline - 1 if capacity is Capacity.SQUEEZE else baseline
        steps = [
            Step(share, max(1, math.ceil(candidate * share / 100)), kept, kept, *hold)
            for share in (shares or CANARY_SHARES)
        ]
    return Plan(tuple(steps), _peak(steps, baseline), _gap(capacity, endpoint, baseline))


def _rolling(baseline: int, candidate: int, capacity: Capacity, hold: tuple[int, int]) -> list[Step]:
    """One replica of the candidate more per step, and the baseline's part less."""
    steps, left = [], baseline
    for number in range(1, candidate + 1):
        after = baseline - math.floor(baseline * number / candidate)
        before = min(left, max(after, left - 1)) if capacity is Capacity.SQUEEZE else left
        share = 100 if number == candidate else round(100 * number / candidate)
        steps.append(Step(share, number, before, after, *hold))
        left = after
    return steps


def _peak(steps: Sequence[Step], baseline: int) -> int:
    return max(0, *(step.candidate_replicas + step.baseline_before - baseline for step in steps))


def _gap(capacity: Capacity, endpoint: str, baseline: int) -> str:
    if capacity is Capacity.IN_PLACE:
        return f"{endpoint} does not answer while the candidate loads"
    if capacity is Capacity.SQUEEZE:
        return f"{endpoint} serves with {baseline - 1} of {counted(baseline, 'replica')} while the candidate loads"
    return ""


def _check(
    shares: Sequence[int], hold_seconds: int, min_requests: int, baseline: int, candidate: int, capacity: Capacity
) -> None:
    if not 0 <= hold_seconds <= MAX_HOLD_SECONDS:
        raise _bad("hold_seconds", f"is a number of seconds from 0 to {MAX_HOLD_SECONDS} (a day)")
    if not 1 <= min_requests <= MAX_REQUESTS:
        raise _bad("min_requests", f"is a number from 1 to {MAX_REQUESTS}")
    if baseline < 1 or candidate < 1:
        raise _bad("replicas", "is at least 1 on both sides; the baseline must be running")
    if capacity is Capacity.SQUEEZE and baseline < 2:
        raise _bad("capacity", "cannot be squeeze for a baseline of one replica; use in_place")
    if shares:
        rising = all(one < other for one, other in itertools.pairwise(shares))
        if len(shares) > MAX_STEPS or not rising or shares[0] < 1 or shares[-1] != 100:
            raise _bad("shares", f"are up to {MAX_STEPS} rising percentages from 1 that end with 100")


def _bad(field: str, problem: str) -> errors.InvalidInput:
    return errors.InvalidInput(f"{field} {problem}.", data={"field": field})

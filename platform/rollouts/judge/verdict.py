"""One verdict from all checks, in one sentence with measure, value and limit (pure)."""

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rollouts.judge.checks import Check, Tolerance, checks_of, threshold
from rollouts.judge.evidence import Evidence

#: Chance that a candidate that is as good as its baseline is ever judged to fail, over all measures and looks.
ALPHA: Final = 0.02
#: Checks that can exist at once: two rules for errors and three durations, two for the length of answers.
MOST_CHECKS: Final = 10


class Outcome(enum.StrEnum):
    """What the judge says. ``wait``: no verdict yet."""

    WAIT = "wait"
    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked: how much must have been seen, and whether time is up.

    ``held``: the step has lasted as long, and seen as much, as planned. ``overdue``: it will not be waited for longer.
    """

    min_requests: int
    held: bool
    overdue: bool


@dataclasses.dataclass(frozen=True)
class Verdict:
    """``check`` is what decided; ``checks`` is everything that was compared."""

    outcome: Outcome
    sentence: str
    check: Check | None
    checks: tuple[Check, ...]

    def as_dict(self) -> dict[str, Any]:
        """As stored and shown."""
        return {
            "outcome": self.outcome.value,
            "sentence": self.sentence,
            "measure": self.check.measure if self.check else "",
            "value": _finite(self.check.value) if self.check else None,
            "limit": _finite(self.check.limit) if self.check else None,
            "checks": [{**dataclasses.asdict(check), "kept": check.kept} for check in self.checks],
        }


def judge(
    baseline: Evidence,
    candidate: Evidence,
    question: Question,
    slo: Mapping[str, float],
    tolerance: Tolerance,
    alpha: float = ALPHA,
) -> Verdict:
    """Say whether the candidate failed, passed, or cannot be told apart yet. May be asked as often as one likes."""
    checks = tuple(checks_of(baseline, candidate, slo, tolerance))
    if candidate.requests < question.min_requests:
        # A judgement on a handful of requests is noise, with one exception: evidence that suffices already.
        broken = _broken(checks, alpha)
        if broken is None:
            return _too_few(candidate, question, checks)
        return Verdict(Outcome.FAIL, "Failed: " + _said(broken), broken, checks)
    broken = _broken(checks, alpha)
    if broken is not None:
        return Verdict(Outcome.FAIL, "Failed: " + _said(broken), broken, checks)
    if not question.held:
        return Verdict(Outcome.WAIT, f"Holding; {candidate.requests} requests seen, nothing is worse.", None, checks)
    if baseline.requests < question.min_requests:
        return _too_few(baseline, question, checks, side_name="baseline")
    return _at_the_end(checks, question, candidate)


def alone(check: Check, min_requests: int, alpha: float = ALPHA) -> Outcome:
    """What one check says by itself, for a table of all of them."""
    if check.log_e >= threshold(alpha, MOST_CHECKS):
        return Outcome.FAIL
    if check.requests < min_requests:
        return Outcome.WAIT
    return Outcome.PASS if check.kept else Outcome.INCONCLUSIVE


def _at_the_end(checks: tuple[Check, ...], question: Question, candidate: Evidence) -> Verdict:
    doubtful = [check for check in checks if not check.kept]
    if not doubtful:
        tightest = max(checks, key=lambda check: check.value / check.limit if check.limit else 0.0)
        return Verdict(Outcome.PASS, "Passed: " + _said(tightest), tightest, checks)
    worst = max(doubtful, key=lambda check: check.log_e)
    if question.overdue:
        return Verdict(Outcome.INCONCLUSIVE, "Not clear: " + _said(worst) + " This may be chance.", worst, checks)
    return Verdict(Outcome.WAIT, "Waiting for more requests: " + _said(worst), worst, checks)


def _too_few(side: Evidence, question: Question, checks: tuple[Check, ...], side_name: str = "candidate") -> Verdict:
    seen = f"the {side_name} answered {side.requests} of the {question.min_requests} requests that a verdict needs."
    if question.overdue:
        return Verdict(Outcome.INCONCLUSIVE, "Not clear: " + seen, None, checks)
    return Verdict(Outcome.WAIT, "Waiting: " + seen, None, checks)


def _broken(checks: Sequence[Check], alpha: float) -> Check | None:
    needed = threshold(alpha, MOST_CHECKS)
    broken = [check for check in checks if check.log_e >= needed]
    return max(broken, key=lambda check: check.log_e, default=None)


_WORDS: Final = {
    "error_rate": "error rate",
    "ttft": "TTFT p95",
    "itl": "ITL p95",
    "e2e": "E2E p95",
    "short_answers": "share of unusually short answers",
    "long_answers": "share of unusually long answers",
}


def _said(check: Check) -> str:
    source = "the objective" if check.against == "slo" else "what the baseline allows"
    beside = f"; baseline {_amount(check.baseline, check.unit)}" if check.baseline is not None else ""
    return (
        f"{_WORDS[check.measure]} {_amount(check.value, check.unit)}, limit {_amount(check.limit, check.unit)} "
        f"({source}{beside}), over {check.requests} requests."
    )


def _amount(value: float, unit: str) -> str:
    if unit == "share":
        return f"{100 * value:.1f} %"
    return f"{value:,.0f} ms" if value >= 10 else f"{value:.1f} ms"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

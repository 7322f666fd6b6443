"""Two sides compared: a row per measure with its difference, an interval drawn against zero and limit, and a verdict;
and what differs between two revisions. Pure: estimates and checks in, words and geometry out.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext

from console.presenters import amounts
from rollouts.judge.checks import Check
from rollouts.judge.intervals import Difference, Estimate, difference
from rollouts.judge.verdict import Outcome

NAMES: Final[dict[str, str | Promise]] = {
    "error_rate": gettext_lazy("Error rate"),
    "ttft_p50": "TTFT p50",
    "ttft_p95": "TTFT p95",
    "itl_p50": "ITL p50",
    "itl_p95": "ITL p95",
    "e2e_p50": "E2E p50",
    "e2e_p95": "E2E p95",
    "tokens_p50": gettext_lazy("Tokens per answer"),
    "short_answers": gettext_lazy("Short answers"),
    "long_answers": gettext_lazy("Long answers"),
}
#: The check that limits a measure, where the two have different names.
_CHECK_OF: Final = {"error_rate": "error_rate", "ttft_p95": "ttft", "itl_p95": "itl", "e2e_p95": "e2e"}
_MINUS, _ZERO_AT = "\u2212", 36.0
#: A difference below this is nothing to draw a scale by (fractions).
_SMALLEST: Final = 0.0005


@dataclasses.dataclass(frozen=True)
class Plot:
    """Places in percent of the width; ``tone`` is good, attn or bad. The line of no difference is always at 36 %."""

    at: float
    low: float | None
    high: float | None
    limit: float | None
    tone: str
    text: str
    zero: float = _ZERO_AT

    @property
    def beyond(self) -> float:
        """How wide the stretch beyond the limit is."""
        return round(100 - self.limit, 2) if self.limit is not None else 0.0


@dataclasses.dataclass(frozen=True)
class Row:
    """A measure of both sides, ready to be shown; texts are empty where nothing is known or limited."""

    name: str | Promise
    baseline: str
    candidate: str
    difference: str
    interval: str
    limit: str
    limit_source: str
    verdict: str
    apart: bool
    plot: Plot | None


def rows(pairs: Iterable[tuple[Estimate, Estimate]], checks: Iterable[tuple[Check, Outcome]] = ()) -> list[Row]:
    """One row per measure in the order of ``pairs``; checks without an estimate (lengths of answers) at the end."""
    by_measure: dict[str, list[tuple[Check, Outcome]]] = {}
    for check, outcome in checks:
        by_measure.setdefault(check.measure, []).append((check, outcome))
    found = []
    for one, other in pairs:
        found.append(_estimated(one, other, by_measure.pop(_CHECK_OF.get(one.measure, ""), [])))
    found += [_only_checked(check, outcome) for rest in by_measure.values() for check, outcome in rest]
    return found


def _estimated(one: Estimate, other: Estimate, checks: Sequence[tuple[Check, Outcome]]) -> Row:
    change = difference(one, other)
    check, outcome = _tightest(checks)
    limit = _limit(check, one.value, relative=one.unit != "share")
    touching = change is None or (change.low <= 0 <= change.high)
    return Row(
        name=NAMES.get(one.measure, one.measure),
        baseline=value_text(one.value, one.unit, other.value),
        candidate=value_text(other.value, other.unit, one.value),
        difference=_signed(change.value, relative=change.relative) if change else amounts.ABSENT,
        interval=_interval(change),
        limit="" if limit is None else _signed(limit, relative=one.unit != "share", digits=1),
        limit_source=check.against if check else "",
        verdict=outcome.value if outcome else "",
        apart=not touching,
        plot=_plot(change, limit, outcome),
    )


def _only_checked(check: Check, outcome: Outcome) -> Row:
    usual = check.baseline or 0.0
    change = Difference(check.value - usual, check.value - usual, check.value - usual, relative=False)
    return Row(
        name=NAMES.get(check.measure, check.measure),
        baseline=value_text(check.baseline, check.unit),
        candidate=value_text(check.value, check.unit),
        difference=_signed(change.value, relative=False),
        interval="",
        limit=_signed(check.limit - usual, relative=False, digits=1),
        limit_source=check.against,
        verdict=outcome.value,
        apart=False,
        plot=_plot(change, check.limit - usual, outcome, is_point=True),
    )


def _tightest(checks: Sequence[tuple[Check, Outcome]]) -> tuple[Check | None, Outcome | None]:
    """The worst verdict counts; among equals the lower limit."""
    if not checks:
        return None, None
    order = [Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.WAIT, Outcome.PASS]
    return min(checks, key=lambda pair: (order.index(pair[1]), pair[0].limit))


def _limit(check: Check | None, usual: float | None, *, relative: bool) -> float | None:
    """The limit as a difference to the baseline, as the other columns are."""
    if check is None or usual is None:
        return None
    if relative:
        return check.limit / usual - 1 if usual else None
    return check.limit - usual


def _plot(
    change: Difference | None, limit: float | None, outcome: Outcome | None, is_point: bool = False
) -> Plot | None:
    if change is None:
        return None
    up = max(change.high, limit or 0.0, _SMALLEST) * 1.15
    down = max(-change.low, 0.0) * 1.1
    unit = max(up / (100 - _ZERO_AT), down / (_ZERO_AT - 2))

    def place(value: float) -> float:
        return round(min(100.0, max(0.0, _ZERO_AT + value / unit)), 2)

    tone = {Outcome.FAIL: "bad", Outcome.INCONCLUSIVE: "attn"}.get(outcome, "good") if outcome else "good"
    text = _("difference %(difference)s, interval %(interval)s") % {
        "difference": _signed(change.value, relative=change.relative),
        "interval": amounts.ABSENT if is_point else _interval(change),
    }
    return Plot(
        at=place(change.value),
        low=None if is_point else place(change.low),
        high=None if is_point else place(change.high),
        limit=None if limit is None else place(limit),
        tone=tone,
        text=text,
    )


def _interval(change: Difference | None) -> str:
    if change is None:
        return ""
    low, high = (_number(value, change.relative, None) for value in (change.low, change.high))
    return pgettext("two ends of an interval", "%(low)s to %(high)s") % {"low": low, "high": high}


def _signed(value: float, *, relative: bool, digits: int | None = None) -> str:
    number = _number(value, relative, digits)
    if relative:
        return pgettext("percent, with the space the language wants", "%(number)s %%") % {"number": number}
    return pgettext("percentage points", "%(number)s pt") % {"number": number}


def _number(value: float, relative: bool, digits: int | None) -> str:
    scaled = value * 100
    places = digits if digits is not None else 1 if relative or abs(scaled) >= 1 else 2 if abs(scaled) >= 0.1 else 3
    text = f"{abs(scaled):.{places}f}"
    if not float(text):
        return text
    return f"{'+' if scaled > 0 else _MINUS}{text}"


def value_text(value: float | None, unit: str, beside: float | None = None) -> str:
    """A value in its unit: a share as percent, a count, or a time in the unit of the longer of it and ``beside``."""
    if value is None:
        return amounts.ABSENT
    if unit == "share":
        percent = value * 100
        digits = 0 if not percent else 3 if percent < 0.1 else 2 if percent < 1 else 1
        return pgettext("percent, with the space the language wants", "%(number)s %%") % {
            "number": f"{percent:.{digits}f}"
        }
    return str(amounts.milliseconds(value, beside or 0.0) if unit == "ms" else amounts.count(round(value)))


@dataclasses.dataclass(frozen=True)
class Changed:
    """A setting that two revisions have differently."""

    name: str
    before: str
    after: str


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Changed]:
    """What differs between two revisions, given as flat mappings; in the order of ``before``."""
    names = [*before, *(name for name in after if name not in before)]
    return [
        Changed(name, _said(before.get(name)), _said(after.get(name)))
        for name in names
        if before.get(name) != after.get(name)
    ]


def _said(value: Any) -> str:
    if value is None:
        return amounts.ABSENT
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)

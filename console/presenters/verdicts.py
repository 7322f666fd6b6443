"""Verdicts in the visitor's language: the judge's sentence, said again from what it kept of the deciding check."""

from collections.abc import Mapping
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext

from console.presenters import amounts

_MEASURES: Final = {
    "error_rate": gettext_lazy("error rate"),
    "ttft": "TTFT p95",
    "itl": "ITL p95",
    "e2e": "E2E p95",
    "short_answers": gettext_lazy("share of unusually short answers"),
    "long_answers": gettext_lazy("share of unusually long answers"),
}


def sentence(verdict: Mapping[str, Any]) -> str:
    """The verdict in one sentence; "" where it was not decided by a check (the judge's own words stand then).

    ``verdict`` is ``rollouts.judge.verdict.Verdict.as_dict``.
    """
    outcome, measure = verdict.get("outcome"), verdict.get("measure")
    if outcome not in ("pass", "fail", "inconclusive") or measure not in _MEASURES:
        return ""
    found = [
        check
        for check in verdict.get("checks") or []
        if (check["measure"], check["value"], check["limit"]) == (measure, verdict.get("value"), verdict.get("limit"))
    ]
    if not found:
        return ""
    what = _what(found[0])
    if outcome == "pass":
        return _("Passed: %(what)s") % {"what": what}
    if outcome == "fail":
        return _("Failed: %(what)s") % {"what": what}
    return _("Not clear: %(what)s This may be chance.") % {"what": what}


def _what(check: Mapping[str, Any]) -> str:
    source = _("the objective") if check["against"] == "slo" else _("what the baseline allows")
    if check.get("baseline") is not None:
        source = _("%(source)s; baseline %(value)s") % {"source": source, "value": _amount(check["baseline"], check)}
    return ngettext(
        "%(measure)s %(value)s, limit %(limit)s (%(source)s), over %(count)s request.",
        "%(measure)s %(value)s, limit %(limit)s (%(source)s), over %(count)s requests.",
        check["requests"],
    ) % {
        "measure": _MEASURES[check["measure"]],
        "value": _amount(check["value"], check),
        "limit": _amount(check["limit"], check),
        "source": source,
        "count": check["requests"],
    }


def _amount(value: float, check: Mapping[str, Any]) -> str:
    if check["unit"] == "share":
        number = amounts.percent(value, 1).number
        return pgettext("percent, with the space the language wants", "%(number)s %%") % {"number": number}
    return str(amounts.milliseconds(value))

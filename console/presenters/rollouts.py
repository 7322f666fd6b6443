"""A rollout for people: its short names, its steps, what happens if you act now, and its charts. Pure."""

import dataclasses
import datetime
from collections.abc import Iterable, Sequence
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, npgettext, pgettext

from console.presenters import verdicts
from console.presenters.charts import Chart, Point, line_chart
from console.presenters.sentences import Said, said
from rollouts.decide import Side
from rollouts.models import LogKind, Rollout, RolloutLog, Strategy
from rollouts.selectors import Measured, Moment, ShareAt
from rollouts.states import RolloutState
from rollouts.strategies import Step

STRATEGIES: Final[dict[str, str | Promise]] = {
    Strategy.CANARY: gettext_lazy("Canary"),
    Strategy.ROLLING: gettext_lazy("Rolling"),
    Strategy.BLUE_GREEN: gettext_lazy("Blue-green"),
}
MAX_MARKS: Final = 24


def short(label: str, other: str) -> str:
    """The part of a side's label (``model v2 · a1b2c3``) that tells it from the other side's."""
    name, _dot, _revision = label.partition(" · ")
    beside, _dot, _revision = other.partition(" · ")
    model, _space, version = name.rpartition(" ")
    if name == beside:
        return label.removeprefix(f"{model} ") if model else label
    return version if model and model == beside.rpartition(" ")[0] else name


def state_word(rollout: Rollout) -> str:
    """``Running, step 2 of 4`` where a step says more than the state alone; "" where it does not."""
    total = len(rollout.plan["steps"])
    if rollout.state not in (RolloutState.RUNNING, RolloutState.PAUSED) or not total:
        return ""
    values = {"step": rollout.step + 1, "total": total}
    if rollout.state == RolloutState.PAUSED:
        return _("Paused in step %(step)s of %(total)s") % values
    return _("Running, step %(step)s of %(total)s") % values


@dataclasses.dataclass(frozen=True)
class StepLine:
    """``phase`` is done, now or later; ``fill`` is how far it is in percent; ``kind`` and ``state`` pick the glyph."""

    share: int
    phase: str
    fact: str
    fill: float
    kind: str
    state: str
    word: str
    at: datetime.datetime | None = None


def steps(
    rollout: Rollout,
    measured: Measured | None,
    log: Iterable[RolloutLog],
    candidate: Side | None,
    now: datetime.datetime,
) -> list[StepLine]:
    """Every step of the plan with how far it is."""
    passed = {line.step: line.at for line in log if line.kind == LogKind.VERDICT and line.data.get("outcome") == "pass"}
    found = []
    for number, values in enumerate(rollout.plan["steps"]):
        step = Step.read(values)
        if number < rollout.step or (number == rollout.step and rollout.state == RolloutState.PROMOTED):
            found.append(_done(step, passed.get(number)))
        elif number == rollout.step and rollout.state != RolloutState.PLANNED:
            found.append(_now(rollout, step, measured, candidate, now))
        else:
            word = pgettext("step", "Not started")
            found.append(StepLine(step.share, "later", _planned(step), 0.0, "rollout", "planned", word))
    return found


def _done(step: Step, at: datetime.datetime | None) -> StepLine:
    if at is None:
        return StepLine(step.share, "done", _planned(step), 100.0, "event", "removed", _("Not judged"))
    return StepLine(step.share, "done", _planned(step), 100.0, "verdict", "pass", _("Passed"), at)


def _now(
    rollout: Rollout, step: Step, measured: Measured | None, candidate: Side | None, now: datetime.datetime
) -> StepLine:
    if rollout.state in (RolloutState.ROLLED_BACK, RolloutState.ROLLING_BACK, RolloutState.ABORTED):
        kind, state = ("verdict", "fail") if rollout.reason == "VerdictFailed" else ("rollout", rollout.state)
        word = _("Failed") if rollout.reason == "VerdictFailed" else _("Ended here")
        return StepLine(step.share, "stopped", _planned(step), 100.0, kind, state, word)
    is_paused = rollout.state == RolloutState.PAUSED
    if rollout.step_began_at is None:
        ready = candidate.ready if candidate else 0
        word = npgettext(
            "step", "%(ready)s of %(wanted)s replica ready", "%(ready)s of %(wanted)s replicas ready",
            step.candidate_replicas,
        ) % {"ready": ready, "wanted": step.candidate_replicas}  # fmt: skip
        return StepLine(step.share, "now", _planned(step), 0.0, "rollout", "paused" if is_paused else "running", word)
    held = max(0.0, (now - rollout.step_began_at).total_seconds())
    seen = min(measured.baseline_requests, measured.candidate_requests) if measured and step.share < 100 else (
        measured.candidate_requests if measured else 0
    )  # fmt: skip
    fact = _("%(held)s of %(hold)s, %(seen)s of %(needed)s requests") % {
        "held": minutes(min(held, step.hold_seconds)), "hold": minutes(step.hold_seconds),
        "seen": f"{seen:,}", "needed": f"{step.min_requests:,}",
    }  # fmt: skip
    time_share = min(1.0, held / step.hold_seconds) if step.hold_seconds else 1.0
    fill = round(100 * min(time_share, 1.0, seen / step.min_requests), 1)
    return StepLine(
        step.share, "now", fact, fill, "rollout", "paused" if is_paused else "running",
        _("Paused") if is_paused else _next(step, held, seen),
    )  # fmt: skip


def _next(step: Step, held: float, seen: int) -> str:
    if held < step.hold_seconds:
        values = {"span": minutes(step.hold_seconds - held)}
        return _("Judged in %(span)s") % values if step.judged else _("Goes on in %(span)s") % values
    return _("Waits for requests") if seen < step.min_requests else _("Is being judged")


def _planned(step: Step) -> str:
    if not step.judged:
        return _("%(hold)s, not judged") % {"hold": minutes(step.hold_seconds)}
    return ngettext("%(hold)s, %(needed)s request", "%(hold)s, %(needed)s requests", step.min_requests) % {
        "hold": minutes(step.hold_seconds), "needed": f"{step.min_requests:,}",
    }  # fmt: skip


def minutes(seconds: float) -> str:
    """A span of a plan: seconds below two minutes, then minutes, then hours."""
    if seconds < 120:
        return _("%(count)s s") % {"count": int(seconds)}
    if seconds < 7200:
        return _("%(count)s min") % {"count": f"{seconds / 60:.3g}" if seconds % 60 == 0 else int(seconds / 60)}
    return _("%(count)s h") % {"count": f"{seconds / 3600:.2g}"}


@dataclasses.dataclass(frozen=True)
class Act:
    """A verb that makes sense now. ``asks`` opens a dialog first; ``effect`` says what will happen."""

    verb: str
    label: str
    short: str
    icon: str
    effect: str
    asks: bool

    @property
    def route(self) -> str:
        """The name of its address."""
        return f"console:rollout-{self.verb.replace('_', '-')}"


def acts(rollout: Rollout, can: dict[str, bool], sides: tuple[Side, Side] | None, names: tuple[str, str]) -> list[Act]:
    """Verbs that make sense now, in the order of their buttons, each with its effect."""
    baseline, candidate = sides if sides else (None, None)
    found = []
    if can["start"]:
        text = _("The candidate’s replicas look for places. The first share is set when they are ready.")
        found.append(Act("start", _("Start"), _("Start"), "play", text, False))
    if can["pause"]:
        text = (
            _("%(share)s %% stays. Nothing is judged or moved until you resume.") % {"share": share_of(sides)}
            if rollout.step_began_at
            else _("Nothing moves until you resume. Replicas that load go on loading.")
        )
        found.append(Act("pause", _("Pause"), _("Pause"), "pause", text, False))
    if can["resume"]:
        found.append(
            Act("resume", _("Resume"), _("Resume"), "play", _("The step is held and judged anew, from zero."), False)
        )
    if can["promote"] and candidate is not None:
        found.append(
            Act("promote", _("Promote to 100 %"), _("Promote"), "promote", _promotion(rollout, candidate, names), True)
        )
    if can["roll_back"] and baseline is not None:
        label = _("Roll back to %(name)s") % {"name": names[0]}
        found.append(Act("roll_back", label, _("Roll back"), "undo", _going_back(baseline, names), False))
    if can["abort"]:
        text = _(
            "The rollout ends. The shares stay as they are (%(share)s %% for %(name)s), and both deployments are yours "
            "to change."
        ) % {"share": share_of(sides), "name": names[1]}
        found.append(Act("abort", _("Abort"), _("Abort"), "stop", text, True))
    return found


def share_of(sides: tuple[Side, Side] | None) -> int:
    """The candidate's share by the weights that are set, in percent."""
    if sides is None:
        return 0
    total = sides[0].weight + sides[1].weight
    return round(100 * sides[1].weight / total) if total else 0


def _promotion(rollout: Rollout, candidate: Side, names: tuple[str, str]) -> str:
    if candidate.ready >= rollout.candidate_replicas:
        return _("100 %% for %(new)s at once, without judging the rest. %(old)s is kept warm for %(span)s.") % {
            "new": names[1], "old": names[0], "span": minutes(rollout.settings.get("keep_seconds", 900)),
        }  # fmt: skip
    return _(
        "Skips the judge. 100 %% for %(new)s as soon as %(wanted)s replicas are ready (%(ready)s are); %(old)s serves "
        "until then."
    ) % {"new": names[1], "old": names[0], "wanted": rollout.candidate_replicas, "ready": candidate.ready}


def _going_back(baseline: Side, names: tuple[str, str]) -> str:
    if baseline.ready:
        return ngettext(
            "100 %% for %(old)s at once: %(ready)s replica is ready. %(new)s finishes its requests and stops.",
            "100 %% for %(old)s at once: %(ready)s replicas are ready. %(new)s finishes its requests and stops.",
            baseline.ready,
        ) % {"old": names[0], "new": names[1], "ready": baseline.ready}
    return _("%(old)s has no ready replica: it starts first, and %(new)s serves until then.") % {
        "old": names[0], "new": names[1],
    }  # fmt: skip


def _percent(number: int) -> str:
    return pgettext("percent, with the space the language wants", "%(number)s %%") % {"number": number}


@dataclasses.dataclass(frozen=True)
class Told:
    """A line of the log; ``kind`` and ``state`` pick the glyph."""

    at: datetime.datetime
    title: str
    kind: str
    state: str
    said: Said
    actor: str
    requests: int | None


def told(rollout: Rollout, lines: Iterable[RolloutLog]) -> list[Told]:
    """The log, newest first; what the judge says meanwhile comes on top."""
    found = []
    verdict = rollout.verdict
    if verdict.get("outcome") == "wait" and rollout.state == RolloutState.RUNNING and rollout.judged_at:
        title = _("Step %(step)s, so far") % {"step": rollout.step + 1}
        seen = verdict.get("candidate_requests")
        found.append(Told(rollout.judged_at, title, "verdict", "wait", said(verdict["sentence"]), "", seen))
    for line in lines:
        kind, state, title = _glyph(line)
        checks = line.data.get("checks") or []
        requests = max((check["requests"] for check in checks), default=None)
        judged = verdicts.sentence(line.data) if line.kind == LogKind.VERDICT else ""
        spoken = Said(judged, True) if judged else said(line.sentence)
        found.append(Told(line.at, title, kind, state, spoken, line.actor, requests))
    return found


def _glyph(line: RolloutLog) -> tuple[str, str, str]:
    step = _("Step %(step)s") % {"step": line.step + 1}
    if line.kind == LogKind.VERDICT:
        return "verdict", str(line.data.get("outcome", "")), _("%(step)s, verdict") % {"step": step}
    if line.kind == LogKind.STATE:
        return "rollout", str(line.data.get("to", "")), step
    if line.kind == LogKind.WEIGHT:
        return "event", "changed", _("%(step)s, share") % {"step": step}
    return "event", "added", step


def charts(
    moments: Sequence[Moment], shares: Sequence[ShareAt], lines: Iterable[RolloutLog], names: tuple[str, str],
    limits: tuple[float | None, float | None],
) -> list[Chart]:  # fmt: skip
    """Traffic, error rate (percent) and TTFT p95 (milliseconds) over time, with the moments at which shares moved.

    ``limits`` are those of error rate (fraction) and TTFT p95 (milliseconds).
    """
    flags = [(one.at, _percent(one.percent), "") for one in shares[1:]]
    lines_only = [(at, "", "") for at, _label, _glyph in flags]
    judged = [line for line in lines if line.kind == LogKind.VERDICT][:MAX_MARKS]
    marks = [
        (line.at, verdicts.sentence(line.data) or said(line.sentence).text, str(line.data.get("outcome", "")))
        for line in judged
    ]
    planned: list[Point] = [(one.at, float(one.planned)) for one in moments]
    taken: list[Point] = [
        (
            one.at,
            100 * one.candidate.requests / total if (total := one.baseline.requests + one.candidate.requests) else None,
        )
        for one in moments
    ]

    def rate(name: str) -> list[Point]:
        sides = [(one.at, getattr(one, name)) for one in moments]
        return [(at, 100 * side.errors / side.requests if side.requests else None) for at, side in sides]

    def ttft(name: str) -> list[Point]:
        return [(one.at, getattr(one, name).ttft.quantile(0.95)) for one in moments]

    both = [("base", names[0], "baseline"), ("main", names[1], "candidate")]
    errors, slow = limits
    return [
        line_chart(
            _("Traffic to %(name)s") % {"name": names[1]}, "%",
            [("main", _("measured"), taken), ("planned", _("planned"), planned)], limit=None, filled=True,
            flags=[*flags, *marks], top=100.0,
        ),
        line_chart(
            _("Error rate"), "%", [(key, name, rate(side)) for key, name, side in both],
            limit=None if errors is None else errors * 100, flags=lines_only,
        ),
        line_chart(
            "TTFT p95", "ms", [(key, name, ttft(side)) for key, name, side in both], limit=slow, flags=lines_only,
        ),
    ]  # fmt: skip

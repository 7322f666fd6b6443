"""Rollouts: the list, and one with its steps, both sides, what was measured, the log, and the acts."""

import uuid
from collections.abc import Callable
from typing import Any, Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console import keyset, queries
from console.presenters import comparison, hbm, rollouts, samples
from console.web import Here, done, problem, refused, tenant_page
from kernel import clock, errors
from rollouts import access, selectors, services, sides
from rollouts.decide import Side
from rollouts.models import Rollout
from rollouts.selectors import Measured
from rollouts.states import ACTIVE
from serving import access as serving_access
from serving import selectors as serving
from serving.models import Deployment
from tenants.roles import Permission

PAGE: Final = 25
LOG, SHOWN = 60, 6
MAX_BARS: Final = 8
#: Kept open while they move: a page that watches one looks again this often (seconds).
WATCH, REST = 4, 30


@tenant_page
def index(request: HttpRequest, here: Here) -> HttpResponse:
    """Active ones first, then history."""
    rows = selectors.rollouts_of(here.tenant)
    active = [_line(row) for row in rows.filter(state__in=ACTIVE)]
    page = keyset.page(request, rows.exclude(state__in=ACTIVE), PAGE)
    context = {
        "active": active,
        "past": [_line(row) for row in page.rows],
        "keyset": page,
        "may_deploy": here.can(Permission.DEPLOY),
        "refresh": WATCH if active else REST,
    }
    return render(request, "console/pages/rollouts.html", context)


def _line(rollout: Rollout) -> dict[str, Any]:
    names = _names(rollout)
    steps = rollout.plan["steps"]
    both = _looked_at(rollout)
    return {
        "rollout": rollout,
        "old": names[0],
        "new": names[1],
        "model": rollout.to_label.partition(" · ")[0].rpartition(" ")[0],
        "word": rollouts.state_word(rollout),
        "share": rollouts.share_of(both) if rollout.state in ACTIVE and both else None,
        "strategy": rollouts.STRATEGIES.get(rollout.strategy, rollout.strategy),
        "steps": len(steps),
        "is_warm": rollout.keep_until is not None and rollout.keep_until > clock.now(),
    }


def _names(rollout: Rollout) -> tuple[str, str]:
    """Baseline and candidate, as short as tells them apart."""
    one, other = rollout.from_label, rollout.to_label
    return rollouts.short(one, other), rollouts.short(other, one)


def _looked_at(rollout: Rollout) -> tuple[Side, Side] | None:
    if rollout.baseline is None or rollout.candidate is None:
        return None
    baseline, candidate = sides.looked_at(rollout.baseline, rollout.candidate)
    return baseline, candidate


@tenant_page
def detail(request: HttpRequest, here: Here, rollout_id: uuid.UUID) -> HttpResponse:
    """One rollout; ``?log=all`` shows its log beyond the newest lines."""
    found = access.access_rollout(here.actor, here.tenant, rollout_id)
    names, both = _names(found), _looked_at(found)
    measured = selectors.measured(found)
    log = list(selectors.log_of(found)[:LOG])
    shares = selectors.shares_of(found)
    rows = comparison.rows(measured.pairs, measured.checks) if measured else []
    acts = rollouts.acts(found, selectors.can(found), both, names) if here.can(Permission.DEPLOY) else []
    told = rollouts.told(found, log)
    shown = LOG + 1 if request.GET.get("log") == "all" else SHOWN
    context: dict[str, Any] = {
        "rollout": found,
        "old": names[0],
        "new": names[1],
        "word": rollouts.state_word(found),
        "strategy": rollouts.STRATEGIES.get(found.strategy, found.strategy),
        "steps": rollouts.steps(found, measured, log, both[1] if both else None, clock.now()),
        "acts": acts,
        "sides": _sides(here, found, both, measured, names),
        "measured": measured,
        "rows": rows,
        "charts": rollouts.charts(selectors.over_time(found, shares), shares, log, names, _limits(measured)),
        "told": told[:shown],
        "earlier": len(told[shown:]),
        "samples": _as_code(here, found),
        "tolerance": found.settings.get("tolerance", {}),
        "is_moving": found.state in ACTIVE,
        "refresh": WATCH if found.state in ACTIVE else REST,
    }
    return render(request, "console/pages/rollout.html", context)


def _sides(
    here: Here,
    rollout: Rollout,
    both: tuple[Side, Side] | None,
    measured: Measured | None,
    names: tuple[str, str],
) -> dict[str, Any] | None:
    """Both deployments with replicas and traffic, and what differs; ``None`` when one was deleted."""
    if both is None or rollout.baseline_id is None or rollout.candidate_id is None:
        return None
    baseline = serving_access.access_deployment(here.actor, here.tenant, rollout.baseline_id)
    candidate = serving_access.access_deployment(here.actor, here.tenant, rollout.candidate_id)
    share, taken = rollouts.share_of(both), measured.share if measured else None
    return {
        "both": [
            _side("base", names[0], baseline, both[0], 100 - share if both[0].weight else 0)
            | {"taken": None if taken is None else 1 - taken, "seen": measured.baseline_requests if measured else None},
            _side("main", names[1], candidate, both[1], share)
            | {"taken": taken, "seen": measured.candidate_requests if measured else None},
        ],
        "comparable": bool(both[0].ready and both[1].ready) and baseline.revision.number != candidate.revision.number,
        "changes": comparison.changes(queries.made_of(baseline.revision), queries.made_of(candidate.revision)),
    }


def _side(key: str, name: str, deployment: Deployment, side: Side, share: int) -> dict[str, Any]:
    live = [row for row in serving.replicas_of(deployment).order_by("id") if row.state != "stopped"]
    return {
        "key": key,
        "name": name,
        "deployment": deployment,
        "ready": side.ready,
        "desired": side.desired,
        "share": share,
        "replicas": [{"replica": row, "memory": hbm.of_ledger(row.ledger)} for row in live[:MAX_BARS]],
        "more": max(0, len(live) - MAX_BARS),
    }


def _limits(measured: Measured | None) -> tuple[float | None, float | None]:
    """The tighter limit of error rate and of TTFT p95, as the judge has them now."""

    def of(measure: str) -> float | None:
        found = [check.limit for check, _outcome in measured.checks if check.measure == measure] if measured else []
        return min(found, default=None)

    return of("error_rate"), of("ttft")


def _as_code(here: Here, rollout: Rollout) -> list[samples.Sample]:
    ident = str(rollout.id)
    path = f"/tenants/{here.tenant.slug}/rollouts/{ident}"
    verbs = [name.replace("_", "-") for name, allowed in selectors.can(rollout).items() if allowed]
    lines = [samples.command("rollouts", verb, ident).text for verb in ("show", "log", *verbs)]
    calls = ["", "/log", "/compared", *(f"/{verb} -X POST" for verb in verbs)]
    curl = "\n".join(
        [
            f"rollout={settings.PUBLIC_URL}/api/v1{path}",
            *(f'curl -H "Authorization: Bearer $MILLPOND_TOKEN" $rollout{call}' for call in calls),
        ]
    )
    return [samples.Sample("CLI", "\n".join(lines)), samples.Sample("curl", curl)]


Verb = Callable[..., Rollout]
_SAID: Final = {
    "start": gettext_lazy("The rollout of %(name)s runs."),
    "pause": gettext_lazy("The rollout of %(name)s is paused."),
    "resume": gettext_lazy("The rollout of %(name)s goes on."),
    "promote": gettext_lazy("%(name)s moves to 100 %%."),
    "roll_back": gettext_lazy("%(name)s goes back."),
    "abort": gettext_lazy("The rollout of %(name)s has ended; the shares stay."),
}


def _verb(name: str, verb: Verb) -> Any:
    """The act; asked by GET it answers with the dialog that says what will happen."""

    @tenant_page(get=Permission.DEPLOY, post=Permission.DEPLOY)
    def view(request: HttpRequest, here: Here, rollout_id: uuid.UUID) -> HttpResponse:
        found = access.access_rollout(here.actor, here.tenant, rollout_id, Permission.DEPLOY)
        back = reverse("console:rollout", kwargs={"slug": here.tenant.slug, "rollout_id": rollout_id})
        if request.method != "POST":
            names = _names(found)
            acts = rollouts.acts(found, selectors.can(found), _looked_at(found), names)
            act = next((one for one in acts if one.verb == name), None)
            if act is None:
                text = _("The rollout is in another state now: this makes no sense any more.")
                return problem(request, errors.Conflict(text, code="stale_transition"))
            context = {"rollout": found, "act": act, "name": found.endpoint.name}
            return render(request, "console/pages/rollout_ask.html", context)
        try:
            verb(actor=here.actor, tenant=here.tenant, rollout=found)
        except errors.PlatformError as exc:
            return refused(request, exc, back)
        return done(request, _SAID[name] % {"name": found.endpoint.name}, back)

    return view


start = _verb("start", services.start)
pause = _verb("pause", services.pause)
resume = _verb("resume", services.resume)
promote = _verb("promote", services.promote)
roll_back = _verb("roll_back", services.roll_back)
abort = _verb("abort", services.abort)

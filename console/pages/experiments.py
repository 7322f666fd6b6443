"""Experiments: the list, the dialog that starts one, one with its estimates, and its end."""

import uuid
from typing import Any, Final

from django import forms
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console import keyset, problems
from console.forms import AmountField, styled
from console.presenters import comparison, rollouts, samples
from console.web import Here, done, refused, tenant_page
from kernel import errors
from rollouts import access, experiments, selectors, sides
from rollouts.judge.intervals import Estimate
from rollouts.models import Experiment
from rollouts.states import ExperimentState
from serving import selectors as serving
from serving.access import access_deployment
from serving.states import SERVING
from tenants.roles import Permission

PAGE: Final = 25
WATCH, REST = 6, 30
_HOURS: Final = {
    "3600": gettext_lazy("after 1 h"),
    "21600": gettext_lazy("after 6 h"),
    "86400": gettext_lazy("after 24 h"),
    "": gettext_lazy("when somebody ends it"),
}


class ExperimentForm(forms.Form):
    """``candidate`` is another running deployment; its endpoint is the one whose traffic is split."""

    name = forms.CharField(label=gettext_lazy("Name"), max_length=120)
    candidate = forms.ChoiceField(label=gettext_lazy("Candidate"))
    percent = AmountField(label=gettext_lazy("Share of the candidate"), min_value=0.1, max_value=99.9, initial=50)
    seconds = forms.ChoiceField(label=gettext_lazy("Ends"), choices=list(_HOURS.items()), required=False)

    def __init__(self, *args: Any, candidates: list[tuple[str, str]], **more: Any) -> None:
        super().__init__(*args, **more)
        self.fields["candidate"].choices = candidates  # type: ignore[attr-defined]
        styled(self)


@tenant_page
def index(request: HttpRequest, here: Here) -> HttpResponse:
    """Running ones first."""
    rows = selectors.experiments_of(here.tenant)
    page = keyset.page(request, rows.exclude(state=ExperimentState.RUNNING), PAGE)
    running = list(rows.filter(state=ExperimentState.RUNNING))
    context = {
        "rows": [_line(row) for row in [*running, *page.rows]],
        "keyset": page,
        "may_deploy": here.can(Permission.DEPLOY),
        "refresh": WATCH if running else REST,
    }
    return render(request, "console/pages/experiments.html", context)


def _line(experiment: Experiment) -> dict[str, Any]:
    one, other = experiment.from_label, experiment.to_label
    return {
        "experiment": experiment,
        "old": rollouts.short(one, other),
        "new": rollouts.short(other, one),
        "percent": f"{experiment.share / 10:g}",
        "rest": f"{100 - experiment.share / 10:g}",
    }


def _candidates(here: Here) -> list[tuple[str, str]]:
    """Running deployments that serve and get no traffic, behind an endpoint where another one gets some."""
    found = []
    busy = {row.endpoint_id for row in serving.deployments_of(here.tenant) if row.weight and row.state == "running"}
    for row in serving.deployments_of(here.tenant):
        ready = sum(1 for replica in row.replicas.all() if replica.state in SERVING)
        if row.state == "running" and not row.weight and ready and row.endpoint_id in busy:
            found.append((str(row.id), f"{row.endpoint.name}: {sides.label_of(row)}"))
    return found


@tenant_page(get=Permission.DEPLOY, post=Permission.DEPLOY)
def create(request: HttpRequest, here: Here) -> HttpResponse:
    """The dialog and the act."""
    candidates = _candidates(here)
    filled = ExperimentForm(request.POST if request.method == "POST" else None, candidates=candidates)
    if request.method == "POST" and filled.is_valid():
        data = filled.cleaned_data
        candidate = access_deployment(here.actor, here.tenant, uuid.UUID(data["candidate"]), Permission.DEPLOY)
        try:
            made = experiments.start_experiment(
                actor=here.actor,
                tenant=here.tenant,
                endpoint=candidate.endpoint,
                name=data["name"],
                candidate_id=candidate.id,
                share=round(data["percent"] * 10),
                seconds=int(data["seconds"]) if data["seconds"] else None,
            )
        except errors.PlatformError as exc:
            field = {"share": "percent"}.get(str(exc.data.get("field", "")), str(exc.data.get("field", "")))
            filled.add_error(field if field in filled.fields else None, f"{problems.describe(exc).text} ({exc.code})")
        else:
            to = reverse("console:experiment", kwargs={"slug": here.tenant.slug, "experiment_id": made.id})
            return done(request, _("The experiment %(name)s runs.") % {"name": made.name}, to)
    context = {"form": filled, "has_candidates": bool(candidates)}
    status = 422 if request.method == "POST" else 200
    return render(request, "console/pages/experiment_form.html", context, status=status)


@tenant_page
def detail(request: HttpRequest, here: Here, experiment_id: uuid.UUID) -> HttpResponse:
    """One experiment."""
    found = access.access_experiment(here.actor, here.tenant, experiment_id)
    results = experiments.compare(found)
    pairs = [(Estimate(**one["baseline"]), Estimate(**one["candidate"])) for one in results.get("measures", [])]
    context = {
        **_line(found),
        "rows": comparison.rows(pairs),
        "results": results,
        "samples": _as_code(here, found),
        "may_end": here.can(Permission.DEPLOY) and found.state == ExperimentState.RUNNING,
        "refresh": WATCH if found.state == ExperimentState.RUNNING else REST,
    }
    return render(request, "console/pages/experiment.html", context)


def _as_code(here: Here, experiment: Experiment) -> list[samples.Sample]:
    ident = str(experiment.id)
    verbs = ["show", *(["end"] if experiment.state == ExperimentState.RUNNING else [])]
    lines = [samples.command("experiments", verb, ident).text for verb in verbs]
    where = f"{settings.PUBLIC_URL}/api/v1/tenants/{here.tenant.slug}/experiments/{ident}"
    calls = [f"-X GET {where}", *([f"-X POST {where}/end"] if len(verbs) > 1 else [])]
    curl = "\n".join(f'curl {call} -H "Authorization: Bearer $MILLPOND_TOKEN"' for call in calls)
    return [samples.Sample("CLI", "\n".join(lines)), samples.Sample("curl", curl)]


@tenant_page(get=Permission.DEPLOY, post=Permission.DEPLOY)
def end(request: HttpRequest, here: Here, experiment_id: uuid.UUID) -> HttpResponse:
    """The dialog that says what will happen, and the act."""
    found = access.access_experiment(here.actor, here.tenant, experiment_id, Permission.DEPLOY)
    if request.method != "POST":
        return render(request, "console/pages/experiment_end.html", _line(found))
    back = reverse("console:experiment", kwargs={"slug": here.tenant.slug, "experiment_id": experiment_id})
    try:
        experiments.end_experiment(actor=here.actor, tenant=here.tenant, experiment=found)
    except errors.PlatformError as exc:
        return refused(request, exc, back)
    return done(request, _("The experiment %(name)s has ended.") % {"name": found.name}, back)

"""The form of a new rollout: what is to serve, how traffic moves, where its room comes from; with a live preview."""

import dataclasses
from typing import Any, Final

from django import forms
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from catalog import configs
from console import problems, queries
from console.forms import AmountField, NumberField, styled
from console.pages.deploy import settings_as_options
from console.presenters import rollouts as words
from console.presenters import samples
from console.web import Here, done, tenant_page
from kernel import errors, scope
from rollouts import planning, services, sides
from rollouts.judge.checks import Tolerance
from rollouts.models import Capacity, Strategy
from rollouts.planning import Wish
from rollouts.strategies import CANARY_SHARES, MAX_HOLD_SECONDS, MAX_REQUESTS
from serving import selectors as serving
from serving.access import access_endpoint
from serving.models import MAX_REPLICAS, Endpoint
from tenants.roles import Permission

CAPACITIES: Final = {
    Capacity.SPARE: gettext_lazy("Spare devices: the candidate loads beside the baseline"),
    Capacity.SQUEEZE: gettext_lazy("Squeeze: one replica of the baseline ends first, the rest serves on"),
    Capacity.IN_PLACE: gettext_lazy("In place: the baseline ends first, nothing answers in between"),
}
_TOLERANCES: Final = ("error_points", "slower", "tail_points", "length_points")
_DEFAULT: Final = Tolerance()
MAX_CHANGES: Final = 2000


class RolloutForm(forms.Form):
    """``version`` is ``model:number``; no replicas means as many as the baseline has. Tolerances are in percent."""

    endpoint = forms.ChoiceField(label=gettext_lazy("Endpoint"))
    version = forms.ChoiceField(label=gettext_lazy("Version"))
    strategy = forms.ChoiceField(label=gettext_lazy("Strategy"), choices=list(words.STRATEGIES.items()))
    shares = forms.CharField(
        label=gettext_lazy("Shares of traffic"),
        required=False,
        max_length=120,
        initial=", ".join(map(str, CANARY_SHARES)),
        help_text=gettext_lazy("Rising percentages that end with 100; one step each. For a canary only."),
    )
    hold_seconds = NumberField(
        label=gettext_lazy("Hold each step"), min_value=0, max_value=MAX_HOLD_SECONDS, initial=300
    )
    min_requests = NumberField(
        label=gettext_lazy("Requests on each side"), min_value=1, max_value=MAX_REQUESTS, initial=100
    )
    replicas = NumberField(
        label=gettext_lazy("Replicas at the end"),
        min_value=0,
        max_value=MAX_REPLICAS,
        required=False,
        help_text=gettext_lazy("Empty: as many as the baseline has."),
    )
    capacity = forms.ChoiceField(
        label=gettext_lazy("Room for the first new replica"),
        choices=list(CAPACITIES.items()),
        initial=Capacity.SPARE,
        widget=forms.RadioSelect,
    )
    auto_rollback = forms.BooleanField(
        label=gettext_lazy("Roll back by itself when a verdict fails"), required=False, initial=True
    )
    config_of = forms.ChoiceField(
        label=gettext_lazy("Serving config"),
        choices=[
            ("baseline", gettext_lazy("as the baseline")),
            ("default", gettext_lazy("the engine’s defaults")),
        ],
        required=False,
    )
    changes = forms.CharField(
        label=gettext_lazy("What is changed in it"),
        required=False,
        max_length=MAX_CHANGES,
        widget=forms.Textarea(attrs={"rows": 2, "placeholder": "max_num_seqs=64", "spellcheck": "false"}),
        help_text=gettext_lazy("One setting in a line, name=value. Empty: nothing."),
    )
    error_points = AmountField(
        label=gettext_lazy("More errors, at most"), min_value=0, max_value=100, initial=100 * _DEFAULT.error_points
    )
    slower = AmountField(
        label=gettext_lazy("Slower, at most"), min_value=0, max_value=1000, initial=100 * _DEFAULT.slower
    )
    tail_points = AmountField(
        label=gettext_lazy("More slow requests, at most"),
        min_value=0,
        max_value=100,
        initial=100 * _DEFAULT.tail_points,
    )
    length_points = AmountField(
        label=gettext_lazy("More odd lengths, at most"),
        min_value=0,
        max_value=100,
        initial=100 * _DEFAULT.length_points,
    )
    keep_seconds = NumberField(
        label=gettext_lazy("Keep the old one warm"), min_value=0, max_value=7 * MAX_HOLD_SECONDS, initial=900
    )
    ready_seconds = NumberField(
        label=gettext_lazy("Give up loading after"), min_value=10, max_value=MAX_HOLD_SECONDS, initial=1800
    )

    def __init__(self, *args: Any, here: Here, versions: queries.Versions, names: list[str], **more: Any) -> None:
        super().__init__(*args, **more)
        self.here = here
        self.fields["endpoint"].choices = [(name, name) for name in names]  # type: ignore[attr-defined]
        self.has_engines = versions.have_engines
        self.fields["version"].choices = versions.choices  # type: ignore[attr-defined]
        styled(self)

    def clean_shares(self) -> tuple[int, ...]:
        """Percentages, of a canary; their order is the planner's to judge."""
        if self.cleaned_data.get("strategy", Strategy.CANARY) != Strategy.CANARY:
            return ()
        parts = self.cleaned_data["shares"].replace("%", " ").replace(",", " ").split()
        if not all(part.isascii() and part.isdigit() and len(part) < 4 for part in parts):
            raise forms.ValidationError(_("Whole percentages like 5, 25, 50, 100."))
        return tuple(int(part) for part in parts)

    def clean_changes(self) -> dict[str, Any]:
        """Settings by name."""
        found: dict[str, Any] = {}
        for line in self.cleaned_data["changes"].splitlines():
            if not line.strip():
                continue
            name, sign, value = (part.strip() for part in line.partition("="))
            if not sign or not name:
                raise forms.ValidationError(_("Each line is name=value."))
            found[name] = _read(value)
        return found

    def wish(self, endpoint: Endpoint) -> Wish:
        """As the services take it."""
        data = self.cleaned_data
        model, _colon, number = data["version"].rpartition(":")
        return Wish(
            model=model,
            version=number,
            config={**self._base(endpoint), **data["changes"]},
            replicas=data["replicas"] or 0,
            strategy=Strategy(data["strategy"]),
            capacity=Capacity(data["capacity"]),
            shares=data["shares"],
            hold_seconds=data["hold_seconds"],
            min_requests=data["min_requests"],
            tolerance=Tolerance(**{name: data[name] / 100 for name in _TOLERANCES}),
            auto_rollback=data["auto_rollback"],
            keep_seconds=data["keep_seconds"],
            ready_seconds=data["ready_seconds"],
        )

    def _base(self, endpoint: Endpoint) -> dict[str, Any]:
        """The baseline's own config, where it differs from the defaults."""
        if self.cleaned_data["config_of"] == "default":
            return {}
        with scope.tenant(self.here.tenant.id):
            config = sides.only_baseline(endpoint).revision.serving_config
        values = {field.name: getattr(config, field.name) for field in dataclasses.fields(configs.Settings)}
        default = dataclasses.asdict(configs.DEFAULTS) | {"products": list(configs.DEFAULTS.products)}
        return {name: value for name, value in values.items() if value != default[name]}


def _read(text: str) -> Any:
    """A setting as typed: a number or a truth value where it looks like one."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _form(request: HttpRequest, here: Here) -> RolloutForm:
    versions = queries.version_choices(here.tenant)
    rows = list(serving.endpoints_of(here.tenant))
    names = [row.name for row in rows if any(one.weight and one.state == "running" for one in row.deployments.all())]
    endpoint = request.GET.get("endpoint", "")
    main = next((row for row in rows if row.name == (endpoint or (names[0] if names else ""))), None)
    initial: dict[str, Any] = {"endpoint": endpoint}
    wanted = f"{request.GET.get('model', '')}:{request.GET.get('version', '')}"
    served = _served(main) if main is not None else set()
    initial["version"] = wanted if wanted in dict(versions.choices) else versions.newest(served) or versions.newest()
    data = request.POST if request.method == "POST" else None
    return RolloutForm(data, here=here, versions=versions, names=names, initial=initial)


def _served(endpoint: Endpoint) -> set[str]:
    """Models that serve behind ``endpoint``."""
    return {one.revision.model.name for one in endpoint.deployments.select_related("revision__model")}


@tenant_page(get=Permission.DEPLOY, post=Permission.DEPLOY)
def form(request: HttpRequest, here: Here) -> HttpResponse:
    """The form and the act."""
    filled = _form(request, here)
    if request.method == "POST" and filled.is_valid():
        try:
            endpoint = access_endpoint(here.actor, here.tenant, filled.cleaned_data["endpoint"], Permission.DEPLOY)
            made = services.create_rollout(
                actor=here.actor,
                tenant=here.tenant,
                endpoint=endpoint,
                wish=filled.wish(endpoint),
                accept=request.POST.get("accept", "")[:300],
                start="plan" not in request.POST,
            )
        except errors.PlatformError as exc:
            filled.add_error(_field_of(filled, exc), f"{problems.describe(exc).text} ({exc.code})")
        else:
            to = reverse("console:rollout", kwargs={"slug": here.tenant.slug, "rollout_id": made.id})
            return done(request, _("The rollout of %(name)s is made.") % {"name": endpoint.name}, to)
    context = {
        "form": filled,
        "has_endpoints": bool(filled.fields["endpoint"].choices),  # type: ignore[attr-defined]
        "has_versions": bool(filled.fields["version"].choices),  # type: ignore[attr-defined]
        "accepted": request.POST.get("accept", "")[:300],
    }
    return render(request, "console/pages/rollout_form.html", context, status=422 if request.method == "POST" else 200)


def _field_of(filled: RolloutForm, exc: errors.PlatformError) -> str | None:
    """Where an error from below belongs; settings of the config are one field here."""
    name = str(exc.data.get("field", ""))
    if name in filled.fields:
        return name
    return "changes" if exc.code == "invalid_config" else None


@tenant_page(post=Permission.DEPLOY)
def preview(request: HttpRequest, here: Here) -> HttpResponse:
    """The planner's own answer, nothing written. Answers a fragment in every case."""
    filled = _form(request, here)
    context: dict[str, Any] = {"id": "rollout-code", "accepted": request.POST.get("accept", "")[:300]}
    if not filled.is_valid():
        context["incomplete"] = [str(texts[0]) for texts in filled.errors.values()][:3]
        return render(request, "console/parts/rollout_preview.html", context)
    try:
        endpoint = access_endpoint(here.actor, here.tenant, filled.cleaned_data["endpoint"])
        wish = filled.wish(endpoint)
        found = planning.preview(actor=here.actor, tenant=here.tenant, endpoint=endpoint, wish=wish)
        context |= {
            "found": found,
            "chosen": wish.capacity.value,
            "endpoint": endpoint,
            "steps": [(step, words.minutes(step.hold_seconds)) for step in found.plan.steps],
            "labels": CAPACITIES,
            "samples": _as_code(here, endpoint, wish, found.plan.gap),
        }
    except errors.PlatformError as exc:
        context |= {"refusal": problems.describe(exc), "code": exc.code}
    return render(request, "console/parts/rollout_preview.html", context)


def _as_code(here: Here, endpoint: Endpoint, wish: Wish, gap: str) -> list[samples.Sample]:
    sets = settings_as_options(wish.config)
    cli = samples.command(
        "rollouts", "start", f"{wish.model}:{wish.version}", endpoint=endpoint.name, strategy=wish.strategy.value,
        capacity=wish.capacity.value, shares=",".join(map(str, wish.shares)), replicas=wish.replicas or "",
        hold=wish.hold_seconds, min_requests=wish.min_requests, accept=gap, follow=True,
    )  # fmt: skip
    body = dataclasses.asdict(wish) | {"accept": gap}
    path = f"/tenants/{here.tenant.slug}/endpoints/{endpoint.name}/rollouts"
    rest = samples.rest(settings.PUBLIC_URL, "POST", path, body)
    return [samples.Sample(cli.lang, f"{cli.text} {sets}".strip()), rest]

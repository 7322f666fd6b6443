"""The deploy form: what is to run where, whether it fits now, and the same act as code."""

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

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
from console.presenters import reasons, samples
from console.presenters.isolation import REQUIRED
from console.web import Here, done, tenant_page
from kernel import errors
from scheduling.fit import Fit
from scheduling.fit import fit as dry_run
from serving import selectors as serving
from serving import services
from serving.models import MAX_REPLICAS, MAX_WEIGHT, Priority
from tenants.roles import Permission

_DEFAULT = configs.DEFAULTS
MAX_SHOWN = 6
#: What devices must have in common to stand in one row, besides node, product and reason.
_ALIKE = ("fits", "isolation", "need_bytes", "free_bytes", "memory_bytes")
_SETTINGS = (
    "dtype", "quantization", "kv_dtype", "offload_layers",
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_gib", "enable_prefix_cache",
    "num_threads", "tensor_parallel", "pipeline_parallel", "expert_parallel", "tp_over_pcie",
    "products", "isolation", "mig_profile", "memory_limit_gib", "thread_percentage",
)  # fmt: skip
_PRIORITIES = [
    (Priority.LOW.value, gettext_lazy("low: gives way first")),
    (Priority.NORMAL.value, gettext_lazy("normal")),
    (Priority.HIGH.value, gettext_lazy("high: takes the place of lower ones")),
]
#: How weights may be held, in words; the names are the engine's.
_QUANTIZATIONS = {
    "none": gettext_lazy("as the number format says"),
    "int8": gettext_lazy("8-bit integers, computed in 8 bits"),
    "int8_weight_only": gettext_lazy("8-bit integers, computed in the number format"),
    "int4_weight_only": gettext_lazy("4-bit integers in groups"),
    "fp8": gettext_lazy("8-bit floats (devices that have them)"),
}
_KV_DTYPES = {
    "same": gettext_lazy("as the number format says"),
    "int8": gettext_lazy("8-bit integers"),
    "fp8": gettext_lazy("8-bit floats (devices that have them)"),
}
# Fields of errors from below, by the names they have there.
_FIELD_OF = {
    "endpoint": "endpoint",
    "kv_cache_bytes": "kv_cache_gib",
    "memory_limit_bytes": "memory_limit_gib",
    "version": "version",
    "replicas": "replicas",
    "weight": "weight",
}


class DeployForm(forms.Form):
    """``version`` is ``model:number``; empty settings mean the engine's own choice."""

    version = forms.ChoiceField(label=gettext_lazy("Version"))
    endpoint = forms.CharField(label=gettext_lazy("Endpoint"), max_length=80)
    replicas = NumberField(label=gettext_lazy("Replicas"), min_value=0, max_value=MAX_REPLICAS, initial=1)
    weight = NumberField(label=gettext_lazy("Share of traffic"), min_value=0, max_value=MAX_WEIGHT, initial=100)
    priority = forms.ChoiceField(
        label=gettext_lazy("Priority"), choices=_PRIORITIES, initial=Priority.NORMAL.value, required=False,
        help_text=gettext_lazy("Who gives way when there is not room for all; high is for the tenant’s admins."),
    )  # fmt: skip
    dtype = forms.ChoiceField(
        label=gettext_lazy("Number format"), choices=[(name, name) for name in configs.DTYPE_BYTES]
    )
    quantization = forms.ChoiceField(
        label=gettext_lazy("Weights"),
        required=False,
        initial=_DEFAULT.quantization,
        choices=[(name, _QUANTIZATIONS[name]) for name in configs.QUANTIZATIONS],
    )
    kv_dtype = forms.ChoiceField(
        label=gettext_lazy("Keys and values"),
        required=False,
        initial=_DEFAULT.kv_dtype,
        choices=[(name, _KV_DTYPES[name]) for name in configs.KV_DTYPES],
    )
    offload_layers = NumberField(
        label=gettext_lazy("Layers in host memory"), required=False, min_value=0, max_value=1024
    )
    max_model_len = NumberField(label=gettext_lazy("Context length"), required=False, min_value=0)
    max_num_seqs = NumberField(label=gettext_lazy("Sequences at once"), min_value=1, initial=_DEFAULT.max_num_seqs)
    max_num_batched_tokens = NumberField(
        label=gettext_lazy("Tokens per step"), min_value=16, initial=_DEFAULT.max_num_batched_tokens
    )
    kv_cache_gib = AmountField(label=gettext_lazy("KV cache"), required=False, min_value=0)
    num_threads = NumberField(label=gettext_lazy("CPU threads"), required=False, min_value=0, max_value=256)
    tensor_parallel = NumberField(
        label=gettext_lazy("Devices per stage"), required=False, min_value=0, max_value=64,
        help_text=gettext_lazy("Tensor parallelism; empty: chosen, one device where that is enough."),
    )  # fmt: skip
    pipeline_parallel = NumberField(
        label=gettext_lazy("Stages"), required=False, min_value=0, max_value=64,
        help_text=gettext_lazy("Pipeline parallelism; empty: chosen."),
    )  # fmt: skip
    expert_parallel = NumberField(
        label=gettext_lazy("Ranks that share the experts"), required=False, min_value=0, max_value=64,
        help_text=gettext_lazy("Expert parallelism, of a mixture of experts only; empty: chosen."),
    )  # fmt: skip
    tp_over_pcie = forms.BooleanField(label=gettext_lazy("Tensor parallelism without NVLink"), required=False)
    products = forms.CharField(
        label=gettext_lazy("GPU models"), required=False, max_length=400,
        help_text=gettext_lazy("Like H100, L40S. Empty: any device that is large enough."),
    )  # fmt: skip
    isolation = forms.ChoiceField(
        label=gettext_lazy("Kept apart by"), required=False, initial=_DEFAULT.isolation,
        choices=list(REQUIRED.items()),
    )  # fmt: skip
    mig_profile = forms.CharField(
        label=gettext_lazy("MIG profile"), required=False, max_length=24,
        help_text=gettext_lazy("Like 3g.40gb. Empty: any device."),
    )  # fmt: skip
    memory_limit_gib = AmountField(
        label=gettext_lazy("Device memory"), required=False, min_value=0,
        help_text=gettext_lazy("The most that it may use. Empty: what is estimated."),
    )  # fmt: skip
    thread_percentage = NumberField(
        label=gettext_lazy("Of the multiprocessors"), required=False, min_value=0, max_value=100,
        help_text=gettext_lazy("For MPS. Empty: no limit."),
    )  # fmt: skip
    enable_prefix_cache = forms.BooleanField(label=gettext_lazy("Prefix cache"), required=False, initial=True)

    def __init__(self, *args: Any, versions: list[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["version"].choices = versions  # type: ignore[attr-defined]
        styled(self)

    def config(self) -> dict[str, Any]:
        """The serving config: what differs from the default."""
        return settings_among(self.cleaned_data)

    def model_and_number(self) -> tuple[str, str]:
        """The chosen version."""
        model, _colon, number = self.cleaned_data["version"].rpartition(":")
        return model, number


def settings_among(values: dict[str, Any]) -> dict[str, Any]:
    """The settings among the values of a form: what differs from the default."""
    found = {name: values.get(name) for name in _SETTINGS}
    return {
        name: value
        for name, value in found.items()
        if value not in (None, "") and value != getattr(_DEFAULT, name, None)
    }


def _initial(request: HttpRequest, versions: queries.Versions) -> dict[str, Any]:
    model, number = request.GET.get("model", ""), request.GET.get("version", "")
    wanted = f"{model}:{number}"
    chosen = wanted if wanted in dict(versions.choices) else versions.newest([model]) or versions.newest()
    endpoint = request.GET.get("endpoint", "") or chosen.rpartition(":")[0].lower().replace("_", "-")
    return {"version": chosen, "endpoint": endpoint}


@tenant_page(get=Permission.DEPLOY, post=Permission.DEPLOY)
def form(request: HttpRequest, here: Here) -> HttpResponse:
    """The form and the act."""
    versions = queries.version_choices(here.tenant)
    filled = DeployForm(request.POST or None, versions=versions.choices, initial=_initial(request, versions))
    if request.method == "POST" and filled.is_valid():
        data = filled.cleaned_data
        model, number = filled.model_and_number()
        try:
            made = services.deploy_version(
                actor=here.actor, tenant=here.tenant, endpoint_name=data["endpoint"], model=model, version=number,
                config=filled.config(), replicas=data["replicas"], weight=data["weight"],
                priority=data["priority"] or None,
            )  # fmt: skip
        except errors.PlatformError as exc:
            field = _FIELD_OF.get(exc.data.get("field", ""), exc.data.get("field"))
            filled.add_error(field if field in filled.fields else None, f"{problems.describe(exc).text} ({exc.code})")
        else:
            to = reverse("console:deployment", kwargs={"slug": here.tenant.slug, "deployment_id": made.id})
            return done(request, _("%(name)s is being deployed.") % {"name": data["endpoint"]}, to)
    names = list(serving.endpoints_of(here.tenant).values_list("name", flat=True))
    context = {
        "form": filled, "has_versions": bool(versions.offered), "has_engines": versions.have_engines, "names": names,
    }  # fmt: skip
    return render(request, "console/pages/deploy.html", context, status=422 if request.method == "POST" else 200)


@tenant_page(post=Permission.DEPLOY)
def fit(request: HttpRequest, here: Here) -> HttpResponse:
    """The live fit check: the planner's own answer, nothing written. Answers a fragment in every case."""
    filled = DeployForm(request.POST, versions=queries.version_choices(here.tenant).choices)
    context: dict[str, Any] = {"id": "deploy-code"}
    if not filled.is_valid():
        context["incomplete"] = [str(texts[0]) for texts in filled.errors.values()][:3]
        return render(request, "console/parts/fit.html", context)
    model, number = filled.model_and_number()
    data, config = filled.cleaned_data, filled.config()
    try:
        answer = dry_run(
            actor=here.actor, tenant=here.tenant, model=model, version=number, config=config, replicas=data["replicas"]
        )
        context |= shown(answer)
    except errors.PlatformError as exc:
        context["refusal"] = problems.describe(exc)
        context["code"] = exc.code
    context["samples"] = _as_code(here, data, model, number, config)
    return render(request, "console/parts/fit.html", context)


def shown(answer: Fit) -> dict[str, Any]:
    """The dry run's answer as ``parts/fit.html`` shows it: devices that say the same together, those that fit first."""
    groups = reasons.together(sorted(answer.devices, key=lambda device: not device["fits"]), *_ALIKE)
    return {
        "fit": dataclasses.asdict(answer) | {"ranks": answer.need["devices"] * answer.need["stages"]},
        "shown": groups[:MAX_SHOWN],
        "folded": groups[MAX_SHOWN:],
        "folded_count": sum(len(group.uuids) for group in groups[MAX_SHOWN:]),
    }


def settings_as_options(config: Mapping[str, Any]) -> str:
    """A serving config as options of the command line."""
    return " ".join(f"--set {name}={_cli_value(value)}" for name, value in config.items())


def _as_code(here: Here, data: dict[str, Any], model: str, number: str, config: dict[str, Any]) -> list[samples.Sample]:
    cli = samples.command(
        "deploy",
        f"{model}:{number}",
        endpoint=data["endpoint"],
        replicas=data["replicas"],
        weight=data["weight"],
        **({"priority": data["priority"]} if data["priority"] else {}),
    )
    body = {
        "endpoint": data["endpoint"], "model": model, "version": number, "replicas": data["replicas"],
        "weight": data["weight"], "config": config,
        **({"priority": data["priority"]} if data["priority"] else {}),
    }  # fmt: skip
    rest = samples.rest(settings.PUBLIC_URL, "POST", f"/tenants/{here.tenant.slug}/deployments", body)
    return [samples.Sample(cli.lang, f"{cli.text} {settings_as_options(config)}".strip()), rest]


def _cli_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return shlex.quote(", ".join(value) if isinstance(value, list | tuple) else str(value))

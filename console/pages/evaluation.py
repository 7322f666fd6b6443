"""Will it fit? A model is judged by its config.json, before anything of it is uploaded."""

import copy
from typing import Any, Final

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext_lazy

from catalog import outline
from catalog.formats.facts import Rejected
from console import problems
from console.forms import NumberField, styled
from console.pages.deploy import DeployForm, settings_among, settings_as_options, shown
from console.presenters import hbm, samples
from console.web import Here, tenant_page
from kernel import errors
from scheduling.evaluation import Evaluation, evaluate, refused
from serving.models import MAX_REPLICAS
from tenants.roles import Permission

#: Of the form that deploys: what decides how much memory is needed, and over how many devices.
_ASKED: Final = (
    "dtype", "quantization", "kv_dtype", "max_model_len", "max_num_seqs", "kv_cache_gib",
    "max_num_batched_tokens", "offload_layers", "tensor_parallel", "pipeline_parallel", "expert_parallel",
    "tp_over_pcie", "products",
)  # fmt: skip
#: Most models that are not here yet are published so.
_DTYPE: Final = "bfloat16"
#: Above the most that a text of the allowed bytes has, so that one that is too long is refused in its own words.
_MAX_TEXT: Final = 2 * outline.MAX_CONFIG_BYTES


class EvaluationForm(forms.Form):
    """The text of a config.json, and the settings that count."""

    config = forms.CharField(
        label="config.json", widget=forms.Textarea, max_length=_MAX_TEXT,
        error_messages={"required": gettext_lazy("Paste a config.json, or choose the file.")},
    )  # fmt: skip
    replicas = NumberField(label=gettext_lazy("Replicas"), min_value=1, max_value=MAX_REPLICAS, initial=1)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["config"].widget.attrs |= {
            "class": "input mono",
            "rows": 10,
            "spellcheck": "false",
            "autocomplete": "off",
        }
        self.fields |= {name: copy.deepcopy(DeployForm.base_fields[name]) for name in _ASKED}
        styled(self)


@tenant_page
def form(request: HttpRequest, here: Here) -> HttpResponse:
    """The form; the answer comes into it as it is filled in."""
    return render(request, "console/pages/evaluation.html", {"form": EvaluationForm(initial={"dtype": _DTYPE})})


@tenant_page(post=Permission.VIEW)
def answer(request: HttpRequest, here: Here) -> HttpResponse:
    """What the model is, needs, and where it would fit now; nothing written. Answers a fragment in every case."""
    filled = EvaluationForm(request.POST)
    context: dict[str, Any] = {}
    if not filled.is_valid():
        context["incomplete"] = [str(texts[0]) for texts in filled.errors.values()][:3]
        return render(request, "console/parts/evaluation.html", context)
    serving, replicas = settings_among(filled.cleaned_data), filled.cleaned_data["replicas"]
    try:
        config = outline.parse(filled.cleaned_data["config"])
        found = evaluate(actor=here.actor, tenant=here.tenant, config=config, serving=serving, replicas=replicas)
        context |= _shown(found)
    except Rejected as refusal:
        context["problem"] = problems.describe(refused(refusal))
    except errors.PlatformError as exc:
        context["problem"] = problems.describe(exc)
    else:
        command = samples.command("models", "evaluate", "config.json", replicas=replicas if replicas > 1 else None)
        text = f"{command.text} {settings_as_options(serving)}".strip()
        context |= {"samples": [samples.Sample(command.lang, text)], "id": "evaluation-code"}
    return render(request, "console/parts/evaluation.html", context)


def _shown(found: Evaluation) -> dict[str, Any]:
    kind = found.placement.need["kind"]
    one = next(need for need in found.needs if need["kind"] == kind)
    return {
        "found": found,
        "estimate": one,
        "memory": hbm.of_need(one),
        "others": [need for need in found.needs if need["kind"] not in (kind, "simulated")],
        "before_upload": True,
        **shown(found.placement),
    }

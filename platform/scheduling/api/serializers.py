"""Bodies of the scheduling API."""

import json
from typing import Any

from rest_framework import serializers

from catalog.outline import MAX_CONFIG_BYTES
from kernel import errors
from kernel.api.bodies import Body
from scheduling.whynot import Why
from serving.models import MAX_REPLICAS

_CODES = ", ".join(Why)


class FitIn(Body):
    """What would be deployed. ``version`` is a number or an alias."""

    model = serializers.CharField(max_length=80)
    version = serializers.CharField(max_length=40)
    config = serializers.DictField(required=False, default=dict)
    replicas = serializers.IntegerField(min_value=1, max_value=MAX_REPLICAS, default=1)


class CollectiveOut(serializers.Serializer[Any]):
    """What the ranks of a replica send each other. ``bytes_per_token`` is what one rank sends per token of a step."""

    name = serializers.CharField()
    calls = serializers.IntegerField(help_text="Per step.")
    bytes_per_token = serializers.IntegerField()
    link = serializers.CharField()
    overlap = serializers.CharField(help_text="Whether compute goes on meanwhile.")


class ParallelOptionOut(serializers.Serializer[Any]):
    """One way to spread a replica over devices, with its numbers; ``why_not`` and ``code`` are empty for the one that
    is taken."""

    name = serializers.CharField()
    sentence = serializers.CharField()
    tp = serializers.IntegerField(help_text="Ranks that share every layer.")
    pp = serializers.IntegerField(help_text="Stages, each with a part of the layers.")
    ep = serializers.IntegerField(help_text="Ranks that share the experts.")
    replicas = serializers.IntegerField()
    weights_bytes_per_rank = serializers.IntegerField()
    kv_budget_bytes_per_rank = serializers.IntegerField()
    kv_tokens = serializers.IntegerField()
    bytes_per_token = serializers.IntegerField()
    collectives = CollectiveOut(many=True)
    why_not = serializers.CharField(allow_blank=True)
    code = serializers.CharField(allow_blank=True, help_text=f"The same as a code: {_CODES}.")


class ParallelOut(serializers.Serializer[Any]):
    """How a replica is spread over devices, and what else was looked at."""

    chosen = ParallelOptionOut(allow_null=True)
    sentence = serializers.CharField(allow_blank=True)
    code = serializers.CharField(allow_blank=True, help_text="Why none works, as a code like those of the ways.")
    rejected = ParallelOptionOut(many=True)


class NeedOut(serializers.Serializer[Any]):
    """What one replica needs; bytes, tokens, CPUs. Over several devices each number says of what it is."""

    kind = serializers.CharField()
    weights_bytes = serializers.IntegerField(help_text="Of all its devices together.")
    kv_floor_bytes = serializers.IntegerField(help_text="Of all its devices together, at least.")
    kv_bytes_per_token = serializers.IntegerField(help_text="Of all its devices together.")
    transfer_bytes = serializers.IntegerField(help_text="Copied from host memory in each step, in all.")
    workspace_bytes = serializers.IntegerField(help_text="On each device.")
    context_bytes = serializers.IntegerField(help_text="On each device.")
    headroom_bytes = serializers.IntegerField(
        help_text="Kept free above the critical watermark, as if all were on one device."
    )
    total_bytes = serializers.IntegerField(help_text="On each device: what a device must have free.")
    host_memory_bytes = serializers.IntegerField(help_text="Per stage, of its node.")
    max_model_len = serializers.IntegerField()
    cpus = serializers.FloatField(help_text="Per stage, of its node.")
    devices = serializers.IntegerField(help_text="Devices that one replica takes together, per stage.")
    stages = serializers.IntegerField()
    isolation = serializers.CharField(help_text="The least that is accepted: any, mps, hardware, exclusive.")
    mig_profile = serializers.CharField(allow_blank=True)
    thread_percentage = serializers.FloatField(help_text="Of the multiprocessors, kept by MPS; 0: no limit.")
    measured = serializers.BooleanField(help_text="From what engines measured on this product, not from arithmetic.")
    parallel = ParallelOut(allow_null=True, help_text="Where one device is not enough, or a plan was asked for.")


class CandidateOut(serializers.Serializer[Any]):
    """The verdict on one device."""

    node = serializers.CharField()
    device_uuid = serializers.CharField()
    product = serializers.CharField()
    kind = serializers.CharField()
    free_bytes = serializers.IntegerField()
    memory_bytes = serializers.IntegerField()
    isolation = serializers.CharField(
        allow_null=True, help_text="What a replica would have here: exclusive, mig, mps or cooperative."
    )
    need_bytes = serializers.IntegerField(allow_null=True)
    fits = serializers.BooleanField()
    reason = serializers.CharField(allow_blank=True)
    message = serializers.CharField()
    plan_code = serializers.CharField(
        allow_blank=True, help_text="What stands against a plan over several such devices, where that is why."
    )
    short_by = serializers.IntegerField(help_text="What is missing: bytes, or thousandths of a CPU or device.")
    would_fit_if = serializers.CharField(allow_blank=True)


class FitOut(serializers.Serializer[Any]):
    """The planner's answer; ``placed`` of ``replicas`` would find a place now."""

    fits = serializers.BooleanField()
    replicas = serializers.IntegerField()
    placed = serializers.IntegerField()
    need = NeedOut()
    devices = CandidateOut(many=True)
    reason = serializers.CharField(allow_blank=True)
    message = serializers.CharField()
    would_fit_if = serializers.CharField(allow_blank=True)
    makes_room = serializers.BooleanField(help_text="Deployed all the same, others give way to it.")


class EvaluationIn(Body):
    """A model that is not uploaded yet. ``serving`` is a serving config, as a deployment has it; where it names no
    ``dtype`` the weights are taken as the config says that they are stored."""

    config = serializers.DictField(help_text="What its config.json says.")
    serving = serializers.DictField(required=False, default=dict)
    replicas = serializers.IntegerField(min_value=1, max_value=MAX_REPLICAS, default=1)

    def validate_config(self, value: dict[str, Any]) -> dict[str, Any]:
        if len(json.dumps(value).encode()) > MAX_CONFIG_BYTES:
            raise errors.TooLarge(f"A config.json has at most {MAX_CONFIG_BYTES} bytes here.", data={"field": "config"})
        return value


class EvaluationOut(serializers.Serializer[Any]):
    """What the model is, what one replica needs on each kind of device, and where it would fit now."""

    architecture = serializers.CharField(allow_blank=True)
    served = serializers.BooleanField(help_text="Whether an engine here runs it.")
    reason = serializers.CharField(allow_blank=True, help_text="Why an upload would be rejected.")
    message = serializers.CharField(allow_blank=True)
    parameters = serializers.IntegerField()
    exact = serializers.BooleanField(help_text="Counted tensor by tensor; false: by formulas of decoders in general.")
    max_model_len = serializers.IntegerField()
    needs = NeedOut(many=True)
    placement = FitOut()

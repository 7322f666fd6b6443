"""Bodies of the scheduling API."""

from typing import Any

from rest_framework import serializers

from serving.models import MAX_REPLICAS


class FitIn(serializers.Serializer[Any]):
    """What would be deployed. ``version`` is a number or an alias."""

    model = serializers.CharField(max_length=80)
    version = serializers.CharField(max_length=40)
    config = serializers.DictField(required=False, default=dict)
    replicas = serializers.IntegerField(min_value=1, max_value=MAX_REPLICAS, default=1)


class NeedOut(serializers.Serializer[Any]):
    """What one replica needs; bytes, tokens, CPUs."""

    kind = serializers.CharField()
    weights_bytes = serializers.IntegerField()
    kv_floor_bytes = serializers.IntegerField()
    kv_bytes_per_token = serializers.IntegerField()
    transfer_bytes = serializers.IntegerField()
    workspace_bytes = serializers.IntegerField()
    context_bytes = serializers.IntegerField()
    headroom_bytes = serializers.IntegerField(help_text="Kept free above the critical watermark.")
    total_bytes = serializers.IntegerField()
    host_memory_bytes = serializers.IntegerField()
    max_model_len = serializers.IntegerField()
    cpus = serializers.FloatField()
    devices = serializers.IntegerField(help_text="Devices that one replica takes together, per stage.")
    stages = serializers.IntegerField()


class CandidateOut(serializers.Serializer[Any]):
    """The verdict on one device."""

    node = serializers.CharField()
    device_uuid = serializers.CharField()
    product = serializers.CharField()
    kind = serializers.CharField()
    free_bytes = serializers.IntegerField()
    memory_bytes = serializers.IntegerField()
    need_bytes = serializers.IntegerField(allow_null=True)
    fits = serializers.BooleanField()
    reason = serializers.CharField(allow_blank=True)
    message = serializers.CharField()
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

"""Shapes of this room's REST."""

from typing import Any

from rest_framework import serializers

from quotas.amount import UNLIMITED_NUMBER, Kind, Line

_MAX_BYTES = 2**63 - 1
_MAX_COUNT = 2**31 - 1


class QuotaItemOut(serializers.Serializer[Any]):
    quota = serializers.ChoiceField(choices=[kind.value for kind in Kind])
    used = serializers.IntegerField(help_text="Bytes, or a count of replicas.")
    limit = serializers.IntegerField(help_text="-1 is unlimited.")


class QuotaOut(serializers.Serializer[Any]):
    items = QuotaItemOut(many=True)


class QuotaIn(serializers.Serializer[Any]):
    """Only the limits that are named change. -1 is unlimited."""

    hbm_bytes = serializers.IntegerField(required=False, min_value=UNLIMITED_NUMBER, max_value=_MAX_BYTES)
    replicas = serializers.IntegerField(required=False, min_value=UNLIMITED_NUMBER, max_value=_MAX_COUNT)
    storage_bytes = serializers.IntegerField(required=False, min_value=UNLIMITED_NUMBER, max_value=_MAX_BYTES)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise serializers.ValidationError(f"Name at least one of {', '.join(kind.value for kind in Kind)}.")
        return attrs


def plain(lines: list[Line]) -> dict[str, Any]:
    """The answer for ``lines``."""
    return {
        "items": [
            {"quota": line.kind.value, "used": line.used.as_number(), "limit": line.limit.as_number()} for line in lines
        ]
    }

"""Shapes of this room's REST."""

from typing import Any

from rest_framework import serializers

from metering.periods import GroupBy


class UsageQuery(serializers.Serializer[Any]):
    group_by = serializers.ChoiceField(choices=[group.value for group in GroupBy], default=GroupBy.DAY.value)

    def get_fields(self) -> dict[str, Any]:
        """``from`` is a word of Python, so the two times are added by name."""
        return {
            "from": serializers.DateTimeField(
                required=False, help_text="Beginning (rounded down to the hour); default: seven days before the end."
            ),
            "to": serializers.DateTimeField(
                required=False, help_text="End, not included (rounded up to the hour); default: now."
            ),
            **super().get_fields(),
        }


class SumsOut(serializers.Serializer[Any]):
    requests = serializers.IntegerField()
    errors = serializers.IntegerField()  # type: ignore[assignment]  # the field hides a property by design of DRF
    aborted = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField(help_text="Charged; contains the cached ones.")
    cached_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()


class UsageRowOut(SumsOut):
    id = serializers.CharField(help_text="Id of the key, endpoint, model or calling tenant; the time for hour and day.")
    label = serializers.CharField(  # type: ignore[assignment]  # as above
        help_text="What people call it."
    )


class UsageOut(serializers.Serializer[Any]):
    group_by = serializers.CharField()
    rows = UsageRowOut(many=True)
    totals = SumsOut()

    def get_fields(self) -> dict[str, Any]:
        """See :class:`UsageQuery`."""
        return {"from": serializers.DateTimeField(), "to": serializers.DateTimeField(), **super().get_fields()}

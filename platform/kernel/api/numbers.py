"""Numbers in REST bodies, read as JSON means them."""

from typing import Any

from rest_framework import serializers


class NumberField(serializers.FloatField):
    """A JSON number: DRF's own field also takes ``true``, and text with the digits of any script."""

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float):
            self.fail("invalid")
        return super().to_internal_value(data)

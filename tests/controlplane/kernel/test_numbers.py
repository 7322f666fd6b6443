"""Numbers in bodies are JSON numbers."""

import pytest
from rest_framework import serializers

from kernel.api.numbers import NumberField


@pytest.mark.parametrize("value", [0, -1.5, 3, 1e300])
def test_numbers_are_taken(value):
    assert NumberField().run_validation(value) == value


@pytest.mark.parametrize("value", [True, False, "3", "٣", [3], {}])
def test_what_only_looks_like_one_is_refused(value):
    with pytest.raises(serializers.ValidationError, match="valid number"):
        NumberField().run_validation(value)

"""JSON objects in bodies of REST: a field that is not known is refused, not passed over."""

import difflib
from collections.abc import Collection, Mapping
from typing import Any, Final

from drf_spectacular.extensions import OpenApiSerializerExtension
from rest_framework import serializers

MAX_NAMED: Final = 5
_MAX_SHOWN: Final = 60


class Body(serializers.Serializer[Any]):
    """The base of all that is read from a body, at any depth.

    A name that is wrong would else be taken for one that was left out, and what was asked for never done.
    Answers, and the parameters of an address, are plain serializers.
    """

    def to_internal_value(self, data: Any) -> Any:
        faults: dict[str, Any] = {}
        if isinstance(data, Mapping):
            known = [name for name, field in self.fields.items() if not field.read_only]
            strange = [str(name)[:_MAX_SHOWN] for name in data if name not in known]
            faults = {name: [unknown(name, known)] for name in strange[:MAX_NAMED]}
        try:
            values = super().to_internal_value(data)
        except serializers.ValidationError as error:
            if isinstance(error.detail, dict):
                faults = {**error.detail, **faults}
            raise serializers.ValidationError(faults or error.detail) from None
        if faults:
            raise serializers.ValidationError(faults)
        return values


def unknown(name: str, known: Collection[str]) -> str:
    """What is said of a field that is not known: the nearest that is, or all."""
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f'There is no such field. Did you mean "{near[0]}"?'
    return f"There is no such field. Known: {', '.join(known)}." if known else "There is no such field."


class BodySchema(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]  # its metaclass hook has no types
    """Says so in the OpenAPI document."""

    target_class = Body
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: Any) -> Any:
        schema = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)
        return {**schema, "additionalProperties": False} if direction == "request" else schema

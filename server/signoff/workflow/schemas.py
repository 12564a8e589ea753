"""JSON schemas of annotations, with what a form needs to know and plain JSON schema leaves out.

Added to what pydantic writes: `format: decimal` with its bounds and digits beside the number that a Decimal may also
be, `format: double` for a float, so that `float | str` is no Decimal; `zone: aware | naive` where a moment must have a
time zone or must not; labels of enum members whose values say nothing (`x-labels`); defaults of simple factories.
What has no schema at all (an author's own class) is left open, `{}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema

_FACTORIES: Final = (list, dict, set, frozenset, tuple, str, int, float, bool)
_LIMITS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def schema_of(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    return adapter.json_schema(schema_generator=FormSchema)


def schemas_of(adapters: Mapping[str, TypeAdapter[Any]]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Schemas by name, and the definitions that they share: two classes of one name stay two."""
    found, shared = TypeAdapter.json_schemas(
        [(name, "validation", adapter) for name, adapter in adapters.items()], schema_generator=FormSchema
    )
    return {str(name): schema for (name, _), schema in found.items()}, shared.get("$defs", {})


class FormSchema(GenerateJsonSchema):
    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return {**super().float_schema(schema), "format": "double"}

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        number: dict[str, Any] = {"type": "number"}
        if self.mode == "validation":
            number |= next((one for one in super().decimal_schema(schema)["anyOf"] if one.get("type") == "number"), {})
        number.pop("format", None)
        text: dict[str, Any] = {"type": "string", "format": "decimal"}
        text |= {key: number[key] for key in _LIMITS if key in number}
        if (places := schema.get("decimal_places")) is not None:
            text["decimalPlaces"] = places
        if (digits := schema.get("max_digits")) is not None:
            text["maxDigits"] = digits
        return {"anyOf": [number, text]} if self.mode == "validation" else text

    def datetime_schema(self, schema: core_schema.DatetimeSchema) -> JsonSchemaValue:
        return _zoned(super().datetime_schema(schema), schema.get("tz_constraint"))

    def time_schema(self, schema: core_schema.TimeSchema) -> JsonSchemaValue:
        return _zoned(super().time_schema(schema), schema.get("tz_constraint"))

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        result = super().enum_schema(schema)
        labels = {
            json.dumps(value): member.name.replace("_", " ").lower().capitalize()
            for member, value in zip(schema["members"], result.get("enum", ()), strict=False)
            if not isinstance(value, str)
        }
        return {**result, "x-labels": labels} if labels else result

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        factory = schema.get("default_factory")
        if "default" not in schema and factory in _FACTORIES:
            return factory()  # these take nothing
        return super().get_default_value(schema)

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return {}


def _zoned(result: JsonSchemaValue, constraint: str | int | None) -> JsonSchemaValue:
    if constraint is None:
        return result
    return {**result, "zone": "naive" if constraint == "naive" else "aware"}

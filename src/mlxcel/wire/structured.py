"""``response_format`` and its relatives: what the output must conform to."""

from __future__ import annotations

from typing import Any

from mlxcel.core.errors import InvalidRequest
from mlxcel.core.jobs import OutputConstraint
from mlxcel.wire.context import ServerFacts
from mlxcel.wire.parse import WireModel


class JsonSchemaFormat(WireModel):
    """OpenAI's wrapper; ``name`` and ``strict`` are accepted and change nothing."""

    name: str | None = None
    strict: bool | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = None

    model_config = WireModel.model_config | {"populate_by_name": True, "alias_generator": lambda name: name.rstrip("_")}


class ResponseFormat(WireModel):
    """``type`` with the schema in OpenAI's place (``json_schema.schema``) or llama-server's (``schema``)."""

    type: str = "text"
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | None = None

    model_config = WireModel.model_config | {"populate_by_name": True, "alias_generator": lambda name: name.rstrip("_")}


def parse_response_format(value: ResponseFormat | None, facts: ServerFacts) -> OutputConstraint | None:
    """The constraint asked for, or None.

    Raises:
        InvalidRequest: an unknown type, a missing schema, or ``json_object`` in strict mode.
    """
    if value is None or value.type == "text":
        return None
    if value.type == "json_object":
        if facts.compat == "strict":
            raise InvalidRequest(
                "'response_format.type': json_object is not supported; send json_schema with a schema",
                param="response_format.type",
            )
        return OutputConstraint("json_schema", value.schema_) if value.schema_ else OutputConstraint("json_object", {})
    if value.type != "json_schema":
        raise InvalidRequest("'response_format.type': must be text or json_schema", param="response_format.type")
    schema = value.json_schema.schema_ if value.json_schema is not None else value.schema_
    if schema is None:
        raise InvalidRequest(
            "'response_format.json_schema.schema' is required when the type is json_schema",
            param="response_format.json_schema.schema",
        )
    return OutputConstraint("json_schema", schema)

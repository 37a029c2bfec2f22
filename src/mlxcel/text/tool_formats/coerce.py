"""Typing arguments by the request's schema, for formats whose bodies are not JSON.

The schema decides, never the look of the value: ``02134`` for a string stays text, ``5.0`` for an integer is 5. Only a
parameter without a usable type is read as JSON or a loose literal where it is one, else as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from mlxcel.text.tool_formats.json_text import is_number, load_strictly, quote
from mlxcel.text.tool_formats.literals import Bare, LiteralError, LiteralReader, Value

_MAX_SCHEMA_STEPS = 64  # through $ref and combinators
_MAX_EXPONENT = 18
_CONSTANTS = {"true": "true", "false": "false", "null": "null", "none": "null"}
_TYPE_OF_PYTHON = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}

Schema = Mapping[str, Any]


class ArgumentSchema:
    """The parameters schema of one function, asked for one argument at a time."""

    def __init__(self, parameters: Schema) -> None:
        self._root = parameters
        self._types: dict[int, frozenset[str]] = {}  # by identity of the subschema, which the root keeps alive

    def property(self, name: str) -> Any:
        """The schema of a top-level parameter; None when it is not declared."""
        return self.child(self._root, name)

    def child(self, schema: Any, name: str) -> Any:
        for candidate in self._alternatives(schema):
            properties = candidate.get("properties")
            if isinstance(properties, Mapping) and name in properties:
                return properties[name]
        for candidate in self._alternatives(schema):
            if isinstance(candidate.get("additionalProperties"), Mapping):
                return candidate["additionalProperties"]
        return None

    def item(self, schema: Any) -> Any:
        """The schema of an array's items; None when there is none."""
        for candidate in self._alternatives(schema):
            if isinstance(candidate.get("items"), Mapping):
                return candidate["items"]
        return None

    def types(self, schema: Any) -> frozenset[str]:
        """The JSON types a schema allows, as far as it says; empty when it does not."""
        known = self._types.get(id(schema))
        if known is None:
            known = frozenset[str]().union(*(_own_types(candidate) for candidate in self._alternatives(schema)))
            self._types[id(schema)] = known
        return known

    def _alternatives(self, schema: Any) -> list[Schema]:
        """The schema and everything its combinators and references lead to."""
        found: list[Schema] = []
        pending = [schema]
        while pending and len(found) < _MAX_SCHEMA_STEPS:
            current = pending.pop()
            if not isinstance(current, Mapping) or any(current is known for known in found):
                continue
            found.append(current)
            if isinstance(current.get("$ref"), str):
                pending.append(self._follow(current["$ref"]))
            for keyword in ("anyOf", "oneOf", "allOf"):
                members = current.get(keyword)
                pending.extend(members if isinstance(members, list) else ())
        return found

    def _follow(self, reference: str) -> Any:
        if not reference.startswith("#"):
            return None
        node: Any = self._root
        for step in reference[1:].split("/")[1:]:
            node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
        return node

    # ---- values -> JSON text ----------------------------------------------------------------------------------------

    def members(self, arguments: Mapping[str, Value]) -> str:
        """JSON text of all arguments."""
        return self.to_json(dict(arguments), self._root)

    def to_json(self, value: Value, schema: Any) -> str:
        """JSON text of ``value``, typed by ``schema`` at every level. Values come from readers with a depth limit."""
        match value:
            case Bare(text):
                return coerce_text(text, self.types(schema))
            case str():
                types = self.types(schema)
                return quote(value) if not types or "string" in types else coerce_text(value, types)
            case list():
                item = self.item(schema)
                return "[" + ", ".join(self.to_json(member, item) for member in value) + "]"
            case dict():
                members = (f"{quote(key)}: {self.to_json(member, self.child(schema, key))}" for key, member in value.items())
                return "{" + ", ".join(members) + "}"


def _own_types(schema: Schema) -> set[str]:
    declared = schema.get("type")
    found = {declared.lower()} if isinstance(declared, str) else set()
    if isinstance(declared, list):
        found |= {entry.lower() for entry in declared if isinstance(entry, str)}
    if not found:
        values = schema.get("enum")
        values = values if isinstance(values, list) else [schema["const"]] if "const" in schema else []
        found |= {_TYPE_OF_PYTHON.get(type(value), "null") for value in values}
        found |= {"object"} if "properties" in schema else set()
        found |= {"array"} if "items" in schema else set()
    if schema.get("nullable") is True and found:
        found.add("null")
    return found


def coerce_text(text: str, types: frozenset[str]) -> str:
    """JSON text of a value that the model wrote without quotes, for a parameter of ``types``.

    A value that fits none of them is passed on as a string, so that the caller's validation can name it.
    """
    if types == {"string"}:
        return quote(text)
    if not types:
        return _loose(text)
    stripped = text.strip()
    may_be_text = "string" in types
    for kind, convert in _CONVERSIONS.items():
        if (kind not in types and (may_be_text or kind != "null")) or (may_be_text and not stripped):
            continue
        converted = convert(stripped)
        if converted is not None and (converted == stripped or not may_be_text or kind in _CONTAINERS | _WORDS):
            return converted
    return quote(text)


def _loose(text: str) -> str:
    """JSON as it is written, a Python literal as JSON, anything else as a string."""
    stripped = text.strip()
    if stripped.startswith(('"', "[", "{")) and load_strictly(stripped)[0]:
        return stripped
    if is_number(stripped):
        return stripped
    if stripped in ("true", "false", "null", "True", "False", "None"):
        return _CONSTANTS[stripped.lower()]
    if stripped.startswith(("[", "{", "(")):
        return _python_container(stripped) or quote(text)
    return quote(text)


def _python_container(text: str) -> str | None:
    reader = LiteralReader(text)
    try:
        value = reader.value()
    except LiteralError:
        return None
    reader.skip_space()
    return ArgumentSchema({}).to_json(value, None) if reader.position == len(text) else None


def _to_null(text: str) -> str | None:
    return "null" if text in ("null", "None") else None


def _to_boolean(text: str) -> str | None:
    return text.lower() if text.lower() in ("true", "false") else None


def _to_number(text: str) -> str | None:
    """A JSON number as written; other spellings of finite numbers (``.5``, ``+3``, ``1_000``) in JSON's."""
    if is_number(text):
        return text
    try:
        number = float(text)
    except ValueError:
        return None
    if number != number or number in (float("inf"), float("-inf")):
        return None
    return str(int(number)) if re.fullmatch(r"[+-]?[\d_]+", text) and len(text) < _MAX_EXPONENT else repr(number)


def _to_integer(text: str) -> str | None:
    if is_number(text) and not set(text) & set(".eE"):
        return text
    number = _to_number(text)
    if number is None:
        return None
    try:
        value = Decimal(number)
    except InvalidOperation:
        return None
    if value.is_finite() and value.adjusted() <= _MAX_EXPONENT and value == value.to_integral_value():
        return str(int(value))
    return None


def _to_array(text: str) -> str | None:
    return _container(text, "[", ("[", "(")) if text else "[]"


def _to_object(text: str) -> str | None:
    return _container(text, "{", ("{",)) if text else "{}"


def _container(text: str, json_opening: str, openings: tuple[str, ...]) -> str | None:
    if text.startswith(json_opening) and load_strictly(text)[0]:
        return text
    return _python_container(text) if text.startswith(openings) else None


_CONTAINERS = frozenset({"array", "object"})
_WORDS = frozenset({"null", "boolean"})
# Tried in this order; a string takes what none of the others accepts. Where text is allowed too, a number must be spelled
# as JSON spells it. ``null`` is taken for any type but text, which is how models leave an optional parameter out.
_CONVERSIONS = {
    "null": _to_null,
    "boolean": _to_boolean,
    "integer": _to_integer,
    "number": _to_number,
    "array": _to_array,
    "object": _to_object,
}

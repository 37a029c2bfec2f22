"""Argument types come from the schema, never from the look of the value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlxcel.text.tool_formats.coerce import ArgumentSchema, coerce_text
from mlxcel.text.tool_formats.literals import Bare, LiteralError, LiteralReader


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        # text stays text
        ("02134", "string", '"02134"'),
        ("1e5", "string", '"1e5"'),
        ("true", "string", '"true"'),
        ("null", "string", '"null"'),
        ("[60,30]", "string", '"[60,30]"'),
        (" a ", "string", '" a "'),
        ("", "string", '""'),
        # numbers
        ("5", "integer", "5"),
        ("5.0", "integer", "5"),
        ("1e3", "integer", "1000"),
        ("007", "integer", "7"),
        ("+3", "integer", "3"),
        ("5.5", "integer", '"5.5"'),
        ("five", "integer", '"five"'),
        ("123456789012345678901234567890", "integer", "123456789012345678901234567890"),
        ("1e999999999", "integer", '"1e999999999"'),
        ("5.0", "number", "5.0"),
        ("1E5", "number", "1E5"),
        (".5", "number", "0.5"),
        ("1_000", "number", "1000"),
        ("nan", "number", '"nan"'),
        ("Infinity", "number", '"Infinity"'),
        # words
        ("False", "boolean", "false"),
        ("TRUE", "boolean", "true"),
        ("yes", "boolean", '"yes"'),
        ("None", "null", "null"),
        ("None", "integer", "null"),
        ("null", "array", "null"),
        # containers
        ('[1, "a"]', "array", '[1, "a"]'),
        ("[1, 'a', None]", "array", '[1, "a", null]'),
        ("(1, 2)", "array", "[1, 2]"),
        ("", "array", "[]"),
        ("", "object", "{}"),
        ('{"b":1,"a":1e5}', "object", '{"b":1,"a":1e5}'),
        ("{'a': True}", "object", '{"a": true}'),
        ("{oops", "object", '"{oops"'),
        # several types
        ("30", "string integer", "30"),
        ("030", "string integer", '"030"'),
        ("5.0", "string integer", '"5.0"'),
        ("x", "string integer", '"x"'),
        ("null", "string null", "null"),
        ("nil", "string null", '"nil"'),
        ("", "string array", '""'),
        ("[1]", "string array", "[1]"),
        ("null", "string integer", '"null"'),
        # no type: JSON or a loose literal, else text
        ("5", "", "5"),
        ("005", "", '"005"'),
        ("True", "", "true"),
        ("none", "", '"none"'),
        ('{"a": 1}', "", '{"a": 1}'),
        ("{'a': [1, (2,)]}", "", '{"a": [1, [2]]}'),
        ('"quoted"', "", '"quoted"'),
        ("plain text", "", '"plain text"'),
        ("[not closed", "", '"[not closed"'),
    ],
)
def test_coerce_text(text: str, types: str, expected: str) -> None:
    assert coerce_text(text, frozenset(types.split())) == expected


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, "integer"),
        ({"type": ["string", "null"]}, "string null"),
        ({"type": "STRING"}, "string"),
        ({"anyOf": [{"type": "array"}, {"type": "null"}]}, "array null"),
        ({"oneOf": [{"$ref": "#/$defs/size"}, {"type": "boolean"}]}, "integer boolean"),
        ({"$ref": "#/$defs/loop"}, ""),
        ({"$ref": "https://example.org/x"}, ""),
        ({"$ref": "#/nowhere/at/all"}, ""),
        ({"enum": ["a", 1, None, True]}, "string integer null boolean"),
        ({"const": 1.5}, "number"),
        ({"properties": {}}, "object"),
        ({"items": {}}, "array"),
        ({"type": "integer", "nullable": True}, "integer null"),
        ({}, ""),
        (True, ""),
        (None, ""),
    ],
)
def test_types_of_a_schema(schema: Any, types: str) -> None:
    root = {"$defs": {"size": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}}
    assert ArgumentSchema(root).types(schema) == frozenset(types.split())


def test_nested_values_follow_nested_schemas() -> None:
    schema = ArgumentSchema(
        {
            "properties": {
                "rows": {"type": "array", "items": {"type": "object", "properties": {"zip": {"type": "string"}}}},
                "map": {"type": "object", "additionalProperties": {"type": "integer"}},
            }
        }
    )
    value: Any = {"rows": [{"zip": Bare("02134"), "n": Bare("5")}], "map": {"a": Bare("2.0")}, "q": "7"}
    written = schema.members(value)
    assert json.loads(written) == {"rows": [{"zip": "02134", "n": 5}], "map": {"a": 2}, "q": "7"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'a'", "a"),
        (r"'it\'s \n \u00e9 \x41 \q'", "it's \n é A \\q"),
        (r'"\ud83d\ude42"', "🙂"),
        (r'"\ud83d"', "\ufffd"),
        ("'it's'", "it's"),
        ('"""a "b" c"""', 'a "b" c'),
        ("5", Bare("5")),
        ("[]", []),
        ("[1, 'b',]", [Bare("1"), "b"]),
        ("()", []),
        ("{'a': {}, b: 2}", {"a": {}, "b": Bare("2")}),
    ],
)
def test_literals(text: str, value: Any) -> None:
    reader = LiteralReader(text)
    assert reader.value() == value
    assert reader.position == len(text)


@pytest.mark.parametrize("text", ["", "'a", "[1", "{'a'}", "{'a': }", "[" * 100 + "]" * 100, "]"])
def test_bad_literals(text: str) -> None:
    with pytest.raises(LiteralError):
        LiteralReader(text).value()

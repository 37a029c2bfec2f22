"""Checks on a client's JSON schema before any of it reaches the grammar compiler. Messages never quote the document."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mlxcel.core.errors import InvalidRequest

MAX_SOURCE_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 32
MAX_SCHEMA_REFS = 64

# Keywords whose value maps names to schemas: the map itself is no level of nesting.
_SCHEMA_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
# Keywords whose value is data, in which nothing is a keyword.
_DATA = frozenset({"const", "enum", "default", "examples"})
# "format" is an annotation unless an implementation knows it (JSON Schema 2020-12, validation, 7.1).
_KNOWN_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)  # fmt: skip


def check_schema(schema: Mapping[str, Any], param: str) -> None:
    """Refuse a schema beyond the limits.

    Raises:
        InvalidRequest: it is larger than 64 KiB, nested deeper than 32 levels, or has more than 64 references.
    """
    references = 0
    for node, depth in _walk(schema):
        if depth > MAX_SCHEMA_DEPTH:
            raise InvalidRequest(f"the JSON schema is nested deeper than {MAX_SCHEMA_DEPTH} levels", param=param)
        if isinstance(node, Mapping):
            references += isinstance(node.get("$ref"), str)
    if references > MAX_SCHEMA_REFS:
        raise InvalidRequest(f"the JSON schema has more than {MAX_SCHEMA_REFS} $ref entries", param=param)
    if len(json.dumps(schema, ensure_ascii=False).encode("utf-8", "replace")) > MAX_SOURCE_BYTES:
        raise InvalidRequest(f"the JSON schema is larger than {MAX_SOURCE_BYTES // 1024} KiB", param=param)


def _walk(schema: Mapping[str, Any]) -> Iterator[tuple[Any, int]]:
    """Every object and array with its level. Levels are those of schemas: ``properties`` and its like add none."""
    stack: list[tuple[Any, int, bool]] = [(schema, 1, False)]
    while stack:
        node, depth, is_map = stack.pop()
        yield node, depth
        if isinstance(node, Mapping):
            for key, value in node.items():
                if isinstance(value, (Mapping, list, tuple)):
                    inner_map = not is_map and key in _SCHEMA_MAPS and isinstance(value, Mapping)
                    stack.append((value, depth if inner_map else depth + 1, inner_map))
            if depth > MAX_SCHEMA_DEPTH:
                return
        else:
            stack.extend((item, depth + (not isinstance(item, Mapping)), False) for item in node
                         if isinstance(item, (Mapping, list, tuple)))  # fmt: skip


def enforceable_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without what must not reach the compiler: unknown string formats, dialect URIs and compiler options."""

    def copy(node: Any, is_map: bool) -> Any:
        if isinstance(node, Mapping):
            return {
                key: value if not is_map and key in _DATA else copy(value, not is_map and key in _SCHEMA_MAPS)
                for key, value in node.items()
                if is_map or not _is_inert(key, value)
            }
        return [copy(item, False) for item in node] if isinstance(node, (list, tuple)) else node

    return {key: value for key, value in copy(schema, False).items() if key not in ("$schema", "x-guidance")}


def _is_inert(key: str, value: Any) -> bool:
    return key == "format" and isinstance(value, str) and value not in _KNOWN_FORMATS

"""Request bytes to a typed request, with errors that name the field and never repeat the offending value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from mlxcel.core.errors import InvalidRequest

Request = TypeVar("Request", bound=BaseModel)

MAX_DEPTH = 256  # JSON nesting; real requests stay under 60, and later walks recurse
_MESSAGE_CHARS = 300


class WireModel(BaseModel):
    """Base of request models: no coercion ("1" is not 1), unknown fields ignored, numbers finite."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, protected_namespaces=())


def parse_body(model: type[Request], raw: bytes) -> Request:
    """Parse and validate a JSON request body.

    Raises:
        InvalidRequest: malformed JSON (NaN, Infinity, lone surrogates and invalid UTF-8 included), too deep nesting, a
            missing field, a wrong type or a value out of range.
    """
    return validate(model, load_json(raw))


def load_json(raw: bytes) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        InvalidRequest: see :func:`parse_body`.
    """
    document = _load(raw, "object")
    if not isinstance(document, dict):
        raise InvalidRequest("the request body must be a JSON object")
    return document


def load_list(raw: bytes) -> list[Any]:
    """The body as a JSON array.

    Raises:
        InvalidRequest: see :func:`parse_body`.
    """
    document = _load(raw, "array")
    if not isinstance(document, list):
        raise InvalidRequest("the request body must be a JSON array")
    return document


def _load(raw: bytes, kind: str) -> object:
    if not raw.strip():
        raise InvalidRequest(f"the request body is empty; send a JSON {kind}")
    try:
        document: object = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the request body is not valid JSON: {error.msg} at character {error.pos}") from None
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _deeper_than(document, MAX_DEPTH):
        raise InvalidRequest(f"the request body is nested deeper than {MAX_DEPTH} levels")
    return document


def validate(model: type[Request], document: Any) -> Request:
    """Validate a parsed document.

    Raises:
        InvalidRequest: the first fault found, with its field as ``param``.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = _most_telling(error.errors(include_url=False, include_context=False, include_input=False))
        path = field_path(first["loc"])
        text = str(first["msg"]).removeprefix("Value error, ")[:_MESSAGE_CHARS]
        if not path:
            raise InvalidRequest(text) from None
        if first["type"] == "missing":
            raise InvalidRequest(f"'{path}' is required", param=path) from None
        raise InvalidRequest(f"'{path}': {text[:1].lower()}{text[1:]}", param=path) from None


def field_path(location: Sequence[int | str]) -> str:
    """``("messages", 0, "content")`` as ``messages[0].content``; union branch labels are left out."""
    path = ""
    for item in location:
        if isinstance(item, int):
            path += f"[{item}]"
        elif _is_field(item):
            path += f".{item}" if path else item
    return path


def _is_field(label: str) -> bool:
    """False for the labels pydantic gives to union branches (type names, tags in angle quotes, validator names)."""
    return not (
        label in _BRANCHES or "[" in label or "-" in label or "(" in label or label.startswith("‹") or label[:1].isupper()
    )


_BRANCHES = frozenset({"str", "int", "float", "bool", "none", "list", "dict", "json"})


def _most_telling(errors: Sequence[Any]) -> Any:
    """The error deepest in the document: for a union that is the branch the client meant."""
    return max(errors, key=lambda error: len([item for item in error["loc"] if isinstance(item, int) or _is_field(item)]))


def _deeper_than(document: object, limit: int) -> bool:
    """Whether containers nest deeper than ``limit``; level by level, so that depth costs no stack."""
    level: list[Any] = [document]
    for _ in range(limit + 1):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True

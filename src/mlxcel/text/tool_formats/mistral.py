"""Mistral's ``[TOOL_CALLS]``, followed by a JSON list (Nemo) or by ``NAME[ARGS]{json}`` (from Ministral 2410 on)."""

from __future__ import annotations

import secrets
import string

from mlxcel.text.markers import MarkerScanner
from mlxcel.text.tool_formats.bare_json import FENCE, read_bare_json
from mlxcel.text.tool_formats.base import JsonCallShape, Marker, ToolFormat, ToolTable
from mlxcel.text.tool_formats.json_calls import JsonCallReader
from mlxcel.text.tool_formats.json_text import read_json_value
from mlxcel.text.tool_formats.source import (
    CallBegin,
    CallEnd,
    CutOff,
    Malformed,
    Reader,
    Source,
    accept,
    peek,
    read_name,
    skip_space,
    take_until,
)

_CALLS, _ARGUMENTS, _CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_ID_END = MarkerScanner((_ARGUMENTS, "{"))
_ID_ALPHABET = string.ascii_letters + string.digits
_ID_CHARS = 9  # Mistral's templates refuse ids that are not nine letters and digits


def _new_id() -> str:
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_CHARS))


def _is_id(text: str) -> bool:
    return len(text) == _ID_CHARS and text.isascii() and text.isalnum()


def _read(source: Source, marker: str, tools: ToolTable) -> Reader[None]:
    if marker != _CALLS:
        yield from read_bare_json(source, marker, tools)
        return
    yield from skip_space(source)
    if (yield from peek(source, 1)) in ("{", "["):
        yield from JsonCallReader(tools, keeps_id=_is_id).read(source)
    else:
        yield from _read_bracketed(source)


def _read_bracketed(source: Source) -> Reader[None]:
    """Read ``NAME[ARGS]{...}``, ``NAME[CALL_ID]ID[ARGS]{...}`` or ``NAME{...}``."""
    header = yield from read_name(source, _ARGUMENTS, _CALL_ID, "{")
    if header is None:
        return
    name, marker = header
    call_id = ""
    if marker == _CALL_ID:
        text, marker = yield from take_until(source, _ID_END)
        call_id = text.strip()
    if marker == _ARGUMENTS:
        yield from skip_space(source)
        marker = yield from accept(source, "{")
    if not marker:
        yield CutOff() if source.closed and not source.available else Malformed()
        return
    yield CallBegin(name, call_id if _is_id(call_id) else None)
    _, complete = yield from read_json_value(source, opening="{", emit=True)
    yield CallEnd() if complete else CutOff()


_DELIMITERS = (_ARGUMENTS, _CALL_ID)
MISTRAL_NEMO = ToolFormat(
    name="mistral_nemo",
    read=_read,
    markers=(Marker(_CALLS), FENCE),
    delimiters=_DELIMITERS,
    shape=JsonCallShape(open="[TOOL_CALLS]", close="", arguments_key="arguments", is_list=True),
    new_id=_new_id,
)
MISTRAL_BRACKETED = ToolFormat(
    name="mistral",
    read=_read,
    markers=(Marker(_CALLS), FENCE),
    delimiters=_DELIMITERS,
    new_id=_new_id,
)

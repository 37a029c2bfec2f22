"""JSON responses and the mapping of errors to them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import orjson
from starlette.responses import Response

from mlxcel.core.errors import AuthError, CapacityError, MlxcelError
from mlxcel.http.faults import ForeignHost, UnsupportedMediaType
from mlxcel.wire.anthropic.errors import error_body as anthropic_body
from mlxcel.wire.errors import error_body as openai_body
from mlxcel.wire.status import status_of

_HTTP_ONLY: dict[type[MlxcelError], int] = {UnsupportedMediaType: 415, ForeignHost: 403}
Dialect = Literal["openai", "anthropic"]
_RETRY_AFTER_S = "1"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.:-]")
_MAX_IGNORED = 16
_NAME_CHARS = 64


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """``X-Mlxcel-Ignored`` with what a request asked for and this server left out; no header for nothing.

    The names come from the client, so they are cut down to characters that a header may hold.
    """
    if not names:
        return {}
    shown = [_UNSAFE.sub("?", name[:_NAME_CHARS]) for name in dict.fromkeys(names)]
    return {"X-Mlxcel-Ignored": ", ".join(shown[:_MAX_IGNORED])}


def truncated_header(indices: Sequence[int]) -> dict[str, str]:
    """``X-Mlxcel-Truncated`` with the places of inputs that were longer than the model's limit; no header for none."""
    if not indices:
        return {}
    more = ", ..." if len(indices) > _MAX_IGNORED else ""
    return {"X-Mlxcel-Truncated": ", ".join(str(index) for index in indices[:_MAX_IGNORED]) + more}


class JsonResponse(Response):
    """A body written by orjson; numpy arrays become lists."""

    media_type = "application/json"

    def __init__(self, body: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        super().__init__(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY), status_code=status, headers=headers)


def error_response(error: MlxcelError, dialect: Dialect = "openai") -> JsonResponse:
    """The documented status and body of an error in a dialect."""
    status = _HTTP_ONLY.get(type(error)) or status_of(error)
    headers: dict[str, str] = {}
    if isinstance(error, CapacityError):
        headers["Retry-After"] = _RETRY_AFTER_S
    if isinstance(error, AuthError):
        headers["WWW-Authenticate"] = "Bearer"
    body = anthropic_body(error) if dialect == "anthropic" else openai_body(error)
    return JsonResponse(body, status, headers)

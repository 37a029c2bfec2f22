"""POST /tokenize and POST /detokenize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from mlxcel.core.tokens import TokenPiece
from mlxcel.wire.parse import WireModel

_INT64 = 2**63


class TokenizeRequest(WireModel):
    """``content``: text, or texts and token ids in their order; absent means no tokens."""

    content: str | list[str | Annotated[int, Field(ge=0, lt=2**31)]] | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None

    @property
    def items(self) -> list[str | int]:
        if isinstance(self.content, str):
            return [self.content]
        return list(self.content or ())


class DetokenizeRequest(WireModel):
    tokens: list[Annotated[int, Field(ge=-_INT64, lt=_INT64)]] | None = None


def render_tokens(pieces: Sequence[TokenPiece], *, with_pieces: bool) -> dict[str, Any]:
    """Plain ids, or ids with their text (a byte array where the bytes are no whole characters)."""
    if not with_pieces:
        return {"tokens": [piece.id for piece in pieces]}
    return {"tokens": [{"id": piece.id, "piece": _text_or_bytes(piece.bytes)} for piece in pieces]}


def _text_or_bytes(raw: bytes) -> str | list[int]:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return list(raw)

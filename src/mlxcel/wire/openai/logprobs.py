"""Log-probabilities in chat form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlxcel.core.events import PieceLogprob


def chat_logprobs(pieces: Sequence[PieceLogprob]) -> dict[str, Any]:
    """The ``logprobs`` object of a choice or of a chunk."""
    return {
        "content": [_entry(piece) | {"top_logprobs": [_entry(other) for other in piece.top]} for piece in pieces],
        "refusal": None,
    }


def _entry(piece: PieceLogprob) -> dict[str, Any]:
    return {"token": piece.text, "logprob": piece.logprob, "bytes": list(piece.bytes)}

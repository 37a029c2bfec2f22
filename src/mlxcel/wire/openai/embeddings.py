"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from typing import Any

from mlxcel.core.vectors import Embeddings, Vector
from mlxcel.wire.vectors import EmbeddingFields, components


class EmbeddingsRequest(EmbeddingFields):
    """Request body; ``input`` is a text, token ids, or a list of texts, lists of ids and typed parts."""


def render(result: Embeddings, request: EmbeddingsRequest, model: str) -> dict[str, Any]:
    """The list body; numbers are arrays that orjson writes."""
    encoded = request.encoding_format == "base64"
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, **(_base64(vector) if encoded else {"embedding": components(vector)})}
            for index, vector in enumerate(result.vectors)
        ],
        "model": model,
        "usage": {"prompt_tokens": result.prompt_tokens, "total_tokens": result.prompt_tokens},
    }


def _base64(vector: Vector) -> dict[str, Any]:
    """Little-endian float32 bytes; the shape goes beside them when it is not a plain vector's."""
    body: dict[str, Any] = {"embedding": base64.b64encode(vector.data).decode("ascii")}
    if len(vector.shape) > 1:
        body["shape"] = list(vector.shape)
    return body

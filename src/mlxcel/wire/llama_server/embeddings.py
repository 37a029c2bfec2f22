"""POST /embedding and POST /embeddings: llama-server's own shape, a bare array whose vectors are arrays of arrays."""

from __future__ import annotations

from typing import Any

from mlxcel.core.vectors import Embeddings
from mlxcel.wire.vectors import EmbeddingFields, components


class NativeEmbeddingsRequest(EmbeddingFields):
    """Request body; the encoding is always numbers."""


def render(result: Embeddings) -> list[dict[str, Any]]:
    """One object an input; a pooled vector is the only row of its ``embedding``."""
    bodies = []
    for index, vector in enumerate(result.vectors):
        numbers = components(vector)
        bodies.append({"index": index, "embedding": numbers if numbers.ndim > 1 else numbers[None]})
    return bodies

"""The bare array of Text Embeddings Inference."""

from __future__ import annotations

from typing import Any

from mlxcel.core.vectors import Ranking
from mlxcel.wire.rerank.request import RerankRequest


def render(ranking: Ranking, request: RerankRequest) -> list[dict[str, Any]]:
    """Results best first, each with its text when asked for."""
    results: list[dict[str, Any]] = []
    for ranked in ranking.results:
        result: dict[str, Any] = {"index": ranked.index, "score": ranked.score}
        if request.return_text and request.texts is not None:
            result["text"] = request.texts[ranked.index]
        results.append(result)
    return results

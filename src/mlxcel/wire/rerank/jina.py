"""The envelope of Jina and Cohere."""

from __future__ import annotations

from typing import Any

from mlxcel.core.vectors import Ranking
from mlxcel.wire.rerank.request import RerankRequest


def render(ranking: Ranking, request: RerankRequest, model: str) -> dict[str, Any]:
    """Results best first; documents are repeated as they were sent, when asked for."""
    results: list[dict[str, Any]] = []
    for ranked in ranking.results:
        result: dict[str, Any] = {"index": ranked.index, "relevance_score": ranked.score}
        if request.return_documents and request.documents is not None:
            document = request.documents[ranked.index]
            result["document"] = document if isinstance(document, str) else document.model_dump(exclude_unset=True)
        results.append(result)
    usage = {"prompt_tokens": ranking.prompt_tokens, "total_tokens": ranking.prompt_tokens}
    return {"model": model, "object": "list", "results": results, "usage": usage}

"""Reranking: one handler for four paths and two shapes."""

from __future__ import annotations

from starlette.responses import Response

from mlxcel.http.call import Call
from mlxcel.http.endpoint import answer_or_cancel
from mlxcel.http.responses import JsonResponse, truncated_header
from mlxcel.http.route import Route
from mlxcel.wire.parse import parse_body
from mlxcel.wire.rerank import jina, tei
from mlxcel.wire.rerank.request import RerankRequest, to_rerank_job
from mlxcel.wire.vectors import check_model


async def rerank(call: Call) -> Response:
    """Documents by relevance: an envelope for ``documents``, a bare array for ``texts``."""
    service = call.rooms.rerank
    request = parse_body(RerankRequest, await call.json_bytes())
    check_model(request.model, service.model.name)

    async def whole() -> Response:
        ranking = await service.rank(to_rerank_job(request))
        shown = tei.render(ranking, request) if request.is_tei else jina.render(ranking, request, service.model.name)
        return JsonResponse(shown, headers=truncated_header(ranking.truncated))

    return await answer_or_cancel(call, whole())


ROUTES = (
    Route(
        "POST",
        "/v1/rerank",
        rerank,
        "Documents by relevance (Jina and Cohere, or TEI)",
        aliases=("/v1/reranking", "/rerank", "/reranking"),
        request=RerankRequest,
        statuses=(400, 413, 415, 501, 503, 504),
        tag="Embeddings and reranking",
    ),
)

"""Embeddings, in OpenAI's shape and in llama-server's."""

from __future__ import annotations

from starlette.responses import Response

from mlxcel.core.vectors import Embeddings
from mlxcel.http.call import Call
from mlxcel.http.endpoint import answer_or_cancel
from mlxcel.http.responses import JsonResponse, truncated_header
from mlxcel.http.route import Route
from mlxcel.wire.llama_server import embeddings as native_wire
from mlxcel.wire.openai import embeddings as wire
from mlxcel.wire.parse import parse_body
from mlxcel.wire.vectors import EmbeddingFields, check_model, to_embed_job


async def embeddings(call: Call) -> Response:
    """Vectors of texts or token ids."""
    service = call.rooms.embeddings
    request = parse_body(wire.EmbeddingsRequest, await call.json_bytes())

    async def whole() -> Response:
        result = await _embed(call, request)
        return JsonResponse(wire.render(result, request, service.model.name), headers=truncated_header(result.truncated))

    return await answer_or_cancel(call, whole())


async def native_embeddings(call: Call) -> Response:
    """Vectors as a bare array."""
    request = parse_body(native_wire.NativeEmbeddingsRequest, await call.json_bytes())

    async def whole() -> Response:
        result = await _embed(call, request)
        return JsonResponse(native_wire.render(result), headers=truncated_header(result.truncated))

    return await answer_or_cancel(call, whole())


async def _embed(call: Call, request: EmbeddingFields) -> Embeddings:
    service = call.rooms.embeddings
    check_model(request.model, service.model.name)
    return await service.embed(to_embed_job(request))


ROUTES = (
    Route(
        "POST",
        "/v1/embeddings",
        embeddings,
        "Vectors of texts (OpenAI)",
        request=wire.EmbeddingsRequest,
        statuses=(400, 413, 415, 501, 503, 504),
        tag="Embeddings and reranking",
    ),
    Route(
        "POST",
        "/embedding",
        native_embeddings,
        "Vectors of texts (llama-server's native shape)",
        aliases=("/embeddings",),
        request=native_wire.NativeEmbeddingsRequest,
        statuses=(400, 413, 415, 501, 503, 504),
        tag="Embeddings and reranking",
    ),
)

"""Health, model list and prompt-cache statistics."""

from __future__ import annotations

from starlette.responses import Response

from mlxcel.http.call import Call
from mlxcel.http.responses import JsonResponse
from mlxcel.http.route import Route
from mlxcel.wire.llama_server.health import render_health
from mlxcel.wire.openai.models import ListedModel, render_models


async def health(call: Call) -> Response:
    """Liveness, load and counters; 503 while nothing more can be taken."""
    report = call.rooms.status.health()
    body = render_health(report.state, report.model, report.stats, report.context_tokens, report.parses_tools)
    return JsonResponse(body, 200 if report.state == "ok" else 503)


async def models(call: Call) -> Response:
    """The loaded models."""
    status = call.rooms.status
    listed = [ListedModel(side.name, status.started_s, capabilities=(side.capability,)) for side in status.sides]
    if (model := status.served) is not None:
        chat = ListedModel(
            model.name,
            status.started_s,
            capabilities=("completion",),
            aliases=model.aliases[1:],
            meta=dict(model.meta),
        )
        listed.insert(0, chat)
    return JsonResponse(render_models(listed))


async def cache_stats(call: Call) -> Response:
    """Prompt-cache counters; a stable payload when the cache is off."""
    return JsonResponse(call.rooms.status.cache_stats())


async def cache_reset(call: Call) -> Response:
    """Drop every cached prefix and report what was freed."""
    return JsonResponse(await call.rooms.status.cache_reset())


ROUTES = (
    Route("GET", "/health", health, "Liveness, load and counters", aliases=("/",), open=True, statuses=(503,)),
    Route("GET", "/v1/health", health, "The same, with a key", statuses=(503,)),
    Route("GET", "/v1/models", models, "The loaded models", aliases=("/models",), tag="OpenAI"),
    Route("GET", "/v1/cache/stats", cache_stats, "Prompt-cache counters", statuses=(501, 503)),
    Route("POST", "/v1/cache/reset", cache_reset, "Drop every cached prefix", statuses=(501, 503)),
)

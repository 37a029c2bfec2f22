"""Properties and metrics, for operators and llama-server clients."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from mlxcel import __version__
from mlxcel.core.errors import CapabilityMissing, FeatureDisabled, NotFound
from mlxcel.http.call import Call
from mlxcel.http.responses import JsonResponse
from mlxcel.http.route import Route
from mlxcel.observe.metrics import CONTENT_TYPE
from mlxcel.services.model import ServedModel
from mlxcel.wire.draft_policy import render_draft_policy
from mlxcel.wire.llama_server.props import render_capabilities, render_props


async def props(call: Call) -> Response:
    """Default generation settings, slot count and facts about the models."""
    status = call.rooms.status
    extra = {
        **_chat_facts(status.served),
        "model_alias": call.context.facts.model_name,
        "modalities": {"vision": False, "audio": False},
        "capabilities": render_capabilities(
            generates=status.served is not None,
            restricted_by=status.restricted_by,
            sides=[(side.capability, {"model": side.name, **side.facts}) for side in status.sides],
        ),
        "endpoint_metrics": call.rooms.endpoints.metrics,
        "endpoint_props": call.rooms.endpoints.props_post,
        "endpoint_slots": call.rooms.endpoints.slots,
        "build_info": f"mlxcel {__version__}",
        "is_sleeping": status.is_sleeping,
    }
    return JsonResponse(render_props(call.context.facts.defaults, status.slot_count, extra))


def _chat_facts(model: ServedModel | None) -> dict[str, Any]:
    if model is None:
        return {}
    return {
        "n_ctx": model.context_tokens,
        "chat_template": model.template.source,
        "chat_template_caps": {"supports_tools": model.template.supports_tools},
        "bos_token": model.tokenizer.special_tokens.get("bos_token", ""),
        "eos_token": model.tokenizer.special_tokens.get("eos_token", ""),
    }


async def set_props(call: Call) -> Response:
    """Accepted for llama-server's clients; there is nothing to set."""
    if not call.rooms.endpoints.props_post:
        raise CapabilityMissing("POST /props is off; start the server with --props")
    await call.json_bytes()
    return JsonResponse({"success": True})


async def draft_policy(call: Call) -> Response:
    """Whether a draft model runs, and whether it pays."""
    status = call.rooms.status
    model = status.served
    target, drafter = (None, None) if model is None else (model.name, model.drafter)
    return JsonResponse(render_draft_policy(target, drafter, status.engine_stats()))


async def disabled(call: Call) -> Response:
    """Routes that llama-server has and this server does not offer."""
    raise FeatureDisabled("this feature is disabled")


async def metrics(call: Call) -> Response:
    """Prometheus text."""
    if not call.rooms.endpoints.metrics:
        raise NotFound("GET /metrics is off; start the server with --metrics or --metrics-port")
    return Response(call.rooms.metrics.render(), headers={"content-type": CONTENT_TYPE})


ROUTES = (
    Route("GET", "/props", props, "Default settings and facts about the model", statuses=(503,), tag="llama-server"),
    Route("POST", "/props", set_props, "No-op for llama-server's clients", statuses=(413, 415, 501), tag="llama-server"),
    Route("GET", "/v1/internal/mtp-policy", draft_policy, "Whether a draft model runs, and whether it pays"),
    Route("GET", "/metrics", metrics, "Prometheus metrics", statuses=(404,), media_type="text/plain"),
    *(
        Route(method, path, disabled, "Not offered; answers 403", successes=(), tag="llama-server")
        for path in ("/tools", "/cors-proxy")
        for method in ("GET", "POST")
    ),
)

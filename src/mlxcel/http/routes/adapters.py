"""Scales of LoRA adapters."""

from __future__ import annotations

from starlette.responses import Response

from mlxcel.http.call import Call
from mlxcel.http.responses import JsonResponse
from mlxcel.http.route import Route
from mlxcel.wire.llama_server.lora import LoraScales, render_adapters
from mlxcel.wire.parse import load_list, validate


async def adapters(call: Call) -> Response:
    """The loaded adapters with the scales in force."""
    return JsonResponse(render_adapters(call.rooms.status.model.adapters.listed()))


async def set_adapters(call: Call) -> Response:
    """New scales for the requests to come; adapters that are not named drop to 0."""
    wanted = validate(LoraScales, load_list(await call.json_bytes()))
    call.rooms.status.model.adapters.set(wanted.pairs)
    return JsonResponse({"success": True})


ROUTES = (
    Route("GET", "/lora-adapters", adapters, "LoRA adapters and their scales", statuses=(501,), tag="llama-server"),
    Route(
        "POST",
        "/lora-adapters",
        set_adapters,
        "Set the scales of LoRA adapters",
        request=LoraScales,
        statuses=(400, 413, 415, 501),
        tag="llama-server",
    ),
)

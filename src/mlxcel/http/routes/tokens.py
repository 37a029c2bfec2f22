"""Tokenizer, template and counting routes."""

from __future__ import annotations

from starlette.responses import Response

from mlxcel.http.call import Call
from mlxcel.http.responses import JsonResponse
from mlxcel.http.route import Route
from mlxcel.wire.llama_server import tokens as wire
from mlxcel.wire.openai import chat as chat_wire
from mlxcel.wire.parse import parse_body


async def tokenize(call: Call) -> Response:
    """Token ids of a text."""
    request = parse_body(wire.TokenizeRequest, await call.json_bytes())
    service = call.rooms.tokens
    ids = service.encode(
        request.items, add_special=bool(request.add_special), parse_special=request.parse_special is not False
    )
    return JsonResponse(wire.render_tokens(service.pieces(ids), with_pieces=bool(request.with_pieces)))


async def detokenize(call: Call) -> Response:
    """Text of token ids."""
    request = parse_body(wire.DetokenizeRequest, await call.json_bytes())
    return JsonResponse({"content": call.rooms.tokens.decode(request.tokens or ())})


async def apply_template(call: Call) -> Response:
    """The prompt that a chat request would be given to the model as."""
    request = parse_body(chat_wire.ChatRequest, await call.json_bytes())
    return JsonResponse({"prompt": await call.rooms.chat.render(chat_wire.to_job(request, call.context))})


async def chat_input_tokens(call: Call) -> Response:
    """Prompt tokens of a chat request."""
    request = parse_body(chat_wire.ChatRequest, await call.json_bytes())
    return JsonResponse({"input_tokens": await call.rooms.chat.count_tokens(chat_wire.to_job(request, call.context))})


_STATUSES = (400, 413, 415, 501)

ROUTES = (
    Route(
        "POST",
        "/tokenize",
        tokenize,
        "Token ids of a text",
        request=wire.TokenizeRequest,
        statuses=_STATUSES,
        tag="llama-server",
    ),
    Route(
        "POST",
        "/detokenize",
        detokenize,
        "Text of token ids",
        request=wire.DetokenizeRequest,
        statuses=(*_STATUSES, 500),
        tag="llama-server",
    ),
    Route(
        "POST",
        "/apply-template",
        apply_template,
        "The prompt of a chat request",
        request=chat_wire.ChatRequest,
        statuses=(*_STATUSES, 503),
        tag="llama-server",
    ),
    Route(
        "POST",
        "/v1/chat/completions/input_tokens",
        chat_input_tokens,
        "Prompt tokens of a chat request",
        aliases=("/chat/completions/input_tokens",),
        request=chat_wire.ChatRequest,
        statuses=(*_STATUSES, 503),
        tag="OpenAI",
    ),
)

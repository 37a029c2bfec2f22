"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from starlette.responses import Response

from mlxcel.http.call import Call
from mlxcel.http.endpoint import answer_or_cancel
from mlxcel.http.responses import JsonResponse, ignored_header
from mlxcel.http.route import Route
from mlxcel.http.streaming import stream_answer
from mlxcel.wire.anthropic import answer as wire_answer
from mlxcel.wire.anthropic import messages as wire
from mlxcel.wire.parse import parse_body


async def messages(call: Call) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    request = parse_body(wire.MessagesRequest, await call.json_bytes())
    job = wire.to_job(request, call.context)
    headers = ignored_header(wire.ignored_tools(request))
    if request.stream:
        answer = await call.rooms.messages.start(job)
        writer = wire_answer.MessageStreamWriter(
            call.context, prompt_tokens=answer.prompt_tokens, omit_thinking=request.omits_thinking
        )
        return stream_answer(call, writer, answer, headers)

    async def whole() -> Response:
        completed = await call.rooms.messages.answer(job)
        call.rooms.count([completed])
        body = wire_answer.render(completed, call.context, omit_thinking=request.omits_thinking)
        return JsonResponse(body, headers=headers)

    return await answer_or_cancel(call, whole())


async def count_tokens(call: Call) -> Response:
    """Tokens of the prompt, by the real render."""
    request = parse_body(wire.CountTokensRequest, await call.json_bytes())
    job = wire.to_job(request, call.context)
    return JsonResponse({"input_tokens": await call.rooms.messages.count_tokens(job)})


ROUTES = (
    Route(
        "POST",
        "/v1/messages",
        messages,
        "Answer a conversation (Anthropic Messages)",
        aliases=("/messages",),
        dialect="anthropic",
        accepts_x_api_key=True,
        request=wire.MessagesRequest,
        streams=True,
        statuses=(400, 413, 415, 501, 503),
        tag="Anthropic",
    ),
    Route(
        "POST",
        "/v1/messages/count_tokens",
        count_tokens,
        "Count the prompt tokens of a messages request",
        aliases=("/messages/count_tokens",),
        dialect="anthropic",
        accepts_x_api_key=True,
        request=wire.CountTokensRequest,
        statuses=(400, 413, 415),
        tag="Anthropic",
    ),
)

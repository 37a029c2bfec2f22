"""POST /v1/chat/completions."""

from __future__ import annotations

from starlette.responses import Response

from mlxcel.http.call import Call
from mlxcel.http.endpoint import answer_or_cancel
from mlxcel.http.responses import JsonResponse
from mlxcel.http.route import Route
from mlxcel.http.streaming import stream_answer
from mlxcel.wire.openai import chat as wire
from mlxcel.wire.openai.control import ControlRequest, render_control
from mlxcel.wire.parse import parse_body


async def chat_completions(call: Call) -> Response:
    """Answer a conversation, whole or as a stream of chunks."""
    request = parse_body(wire.ChatRequest, await call.json_bytes())
    job = wire.to_job(request, call.context)
    choices = request.n or 1
    if request.stream:
        events = await call.rooms.chat.start(job, choices=choices)
        writer = wire.ChatStreamWriter(call.context, include_usage=request.include_usage, choices=choices)
        return stream_answer(call, writer, events)

    async def whole() -> Response:
        answers = await call.rooms.chat.answer(job, choices=choices)
        call.rooms.count(answers)
        return JsonResponse(wire.render(answers, call.context))

    return await answer_or_cancel(call, whole())


async def control(call: Call) -> Response:
    """End the thinking of an answer that is being written (its request set ``reasoning_control``)."""
    request = parse_body(ControlRequest, await call.json_bytes())
    return JsonResponse(render_control(success=await call.rooms.chat.end_reasoning(request.request_id)))


ROUTES = (
    Route(
        "POST",
        "/v1/chat/completions",
        chat_completions,
        "Answer a conversation (OpenAI chat completions)",
        aliases=("/chat/completions",),
        request=wire.ChatRequest,
        streams=True,
        statuses=(400, 413, 415, 501, 503),
        tag="OpenAI",
    ),
    Route(
        "POST",
        "/v1/chat/completions/control",
        control,
        "End the thinking of a running answer",
        aliases=("/chat/completions/control",),
        request=ControlRequest,
        statuses=(400, 413, 415, 501),
        tag="llama-server",
    ),
)

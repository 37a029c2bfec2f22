"""POST /v1/completions."""

from __future__ import annotations

from starlette.responses import Response

from mlxcel.http.call import Call
from mlxcel.http.endpoint import answer_or_cancel
from mlxcel.http.responses import JsonResponse
from mlxcel.http.route import Route
from mlxcel.http.streaming import stream_answer
from mlxcel.wire.openai import completions as wire
from mlxcel.wire.parse import parse_body


async def completions(call: Call) -> Response:
    """Continue one prompt or several, whole or as a stream of chunks."""
    request = parse_body(wire.CompletionRequest, await call.json_bytes())
    jobs = wire.to_jobs(request, call.context)
    service = call.rooms.completion
    if request.stream:
        events = await service.start(jobs)
        echoes = service.echoes(jobs)
        writer = wire.CompletionStreamWriter(call.context, echoes, include_usage=request.include_usage)
        return stream_answer(call, writer, events, counted=False)

    async def whole() -> Response:
        answers = await service.answer(jobs)
        call.rooms.count(answers)
        return JsonResponse(wire.render(answers, service.echoes(jobs), call.context))

    return await answer_or_cancel(call, whole())


ROUTES = (
    Route(
        "POST",
        "/v1/completions",
        completions,
        "Continue a text (OpenAI completions)",
        request=wire.CompletionRequest,
        streams=True,
        statuses=(400, 413, 415, 501, 503),
        tag="OpenAI",
    ),
)

"""llama-server's native generation routes."""

from __future__ import annotations

import dataclasses

from starlette.responses import Response

from mlxcel.core.jobs import CompletionJob, GenerationOptions
from mlxcel.http.call import Call
from mlxcel.http.endpoint import answer_or_cancel
from mlxcel.http.responses import JsonResponse
from mlxcel.http.route import Route
from mlxcel.http.streaming import stream_answer
from mlxcel.services.infill import ExtraFile
from mlxcel.wire.llama_server import completion as wire
from mlxcel.wire.llama_server.fields import NativeFields, to_options
from mlxcel.wire.llama_server.infill import InfillRequest
from mlxcel.wire.parse import parse_body


async def completion(call: Call) -> Response:
    """Continue a prompt, whole or as a stream of partial objects."""
    request = parse_body(wire.CompletionRequest, await call.json_bytes())
    job = wire.to_job(request, call.context)
    return await _continue(call, request, dataclasses.replace(job, options=_with_adapters(call, job.options)))


async def infill(call: Call) -> Response:
    """Fill the gap between a prefix and a suffix."""
    request = parse_body(InfillRequest, await call.json_bytes())
    extra = [ExtraFile(item.filename or "", item.text) for item in request.input_extra or ()]
    prompt = call.rooms.infill.prompt(request.input_prefix, request.input_suffix, request.prompt or "", extra)
    options = _with_adapters(call, to_options(request, call.context))
    options = dataclasses.replace(options, stop_ids=call.rooms.infill.stop_ids)
    job = CompletionJob(call.context.request_id, prompt, options)
    return await _continue(call, request, job)


def _with_adapters(call: Call, options: GenerationOptions) -> GenerationOptions:
    """The scales in force now, so that the answer can show them."""
    return dataclasses.replace(options, adapters=call.rooms.status.model.adapters.in_force(options.adapters))


async def _continue(call: Call, request: NativeFields, job: CompletionJob) -> Response:
    service, model = call.rooms.completion, call.context.facts.model_name
    if request.stream:
        events = await service.start([job])
        writer = wire.CompletionStreamWriter(request, job.options, service.text_of(job.prompt), model)
        return stream_answer(call, writer, events, counted=False)

    async def whole() -> Response:
        (answer,) = await service.answer([job])
        return JsonResponse(wire.render(answer, request, job.options, service.text_of(job.prompt), model))

    return await answer_or_cancel(call, whole())


ROUTES = (
    Route(
        "POST",
        "/completion",
        completion,
        "Continue a prompt (llama-server's native shape)",
        aliases=("/completions",),
        request=wire.CompletionRequest,
        streams=True,
        statuses=(400, 413, 415, 501, 503),
        tag="llama-server",
    ),
    Route(
        "POST",
        "/infill",
        infill,
        "Fill the gap between a prefix and a suffix",
        request=InfillRequest,
        streams=True,
        statuses=(400, 413, 415, 501, 503),
        tag="llama-server",
    ),
)

"""The OpenAI Responses routes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import orjson
from starlette.responses import Response

from mlxcel.core.events import Completed, OutputEvent
from mlxcel.core.jobs import ChatJob
from mlxcel.http.call import Call
from mlxcel.http.endpoint import answer_or_cancel
from mlxcel.http.responses import JsonResponse, ignored_header
from mlxcel.http.route import Route
from mlxcel.http.streaming import stream_answer
from mlxcel.services.compaction import CompactedAnswer, History
from mlxcel.services.generation import Answer
from mlxcel.services.responses import Thread
from mlxcel.wire.openai.responses import compaction as wire_compaction
from mlxcel.wire.openai.responses import request as wire
from mlxcel.wire.openai.responses.answer import ResponseBuilder, ResponseStreamWriter
from mlxcel.wire.openai.responses.envelope import mark_cancelled, response_head, response_id
from mlxcel.wire.openai.responses.history import HistoryItem, Summary, segments, to_messages, unfold
from mlxcel.wire.openai.responses.items import Item, dump_item, load_items, resolve_references
from mlxcel.wire.openai.responses.tools import ToolSet, read_tools
from mlxcel.wire.parse import parse_body


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A request with everything that it continues from."""

    thread: Thread
    own_items: Sequence[Item]
    history: Sequence[HistoryItem]
    tools: ToolSet
    job: ChatJob
    headers: dict[str, str]


async def create(call: Call) -> Response:
    """Answer, whole or as a stream of events."""
    request = parse_body(wire.ResponsesRequest, await call.json_bytes())
    exchange = _open(call, request, stores=request.stores)
    builder = ResponseBuilder(
        response_head(request, exchange.job, exchange.tools, call.context),
        exchange.tools,
        now=time.time,
        max_tool_calls=request.max_tool_calls,
        seals_reasoning=request.encrypts_reasoning,
        compaction_item=lambda done: wire_compaction.compaction_item(exchange.history, done),
    )
    if request.stream:
        answer = await _start(call, request, exchange)
        service, thread = call.rooms.responses, exchange.thread
        service.started(thread, answer, orjson.dumps(builder.response))
        events = _Watched(answer, lambda: service.ended(thread))
        writer = _KeepingWriter(builder, lambda: _keep(call, exchange, builder))
        return stream_answer(call, writer, events, exchange.headers)

    async def whole() -> Response:
        answer = await _start(call, request, exchange)
        try:
            async for event in answer:
                builder.on(event)
                if isinstance(event, Completed):
                    call.rooms.count([event])
        finally:
            await answer.aclose()
        _keep(call, exchange, builder)
        return JsonResponse(builder.response, headers=exchange.headers)

    return await answer_or_cancel(call, whole())


async def input_tokens(call: Call) -> Response:
    """Tokens of the prompt, by the real render."""
    request = parse_body(wire.InputTokensRequest, await call.json_bytes())
    exchange = _open(call, request, stores=False)
    count = await call.rooms.chat.count_tokens(exchange.job)
    return JsonResponse({"object": "response.input_tokens", "input_tokens": count}, headers=exchange.headers)


async def compact(call: Call) -> Response:
    """Summarise the older part of a history. Nothing is stored."""
    request = parse_body(wire_compaction.CompactRequest, await call.json_bytes())
    wire_compaction.refuse_what_compaction_lacks(request)
    exchange = _open(call, request, stores=False)

    async def whole() -> Response:
        service = call.rooms.compaction
        limits = {} if request.max_output_tokens is None else {"summary_tokens": request.max_output_tokens}
        running = await service.begin(_history(call, request, exchange), keep_tokens=request.keep_tokens, **limits)
        try:
            done, _ = await running.result()
        finally:
            await running.aclose()
        body = wire_compaction.render_compaction(exchange.history, done, running.usage, call.context)
        return JsonResponse(body, headers=exchange.headers)

    return await answer_or_cancel(call, whole())


async def retrieve(call: Call) -> Response:
    """A stored response."""
    return _json(call.rooms.responses.retrieve(call.tenant, _id(call)))


async def delete(call: Call) -> Response:
    """Forget a stored response."""
    call.rooms.responses.delete(call.tenant, _id(call))
    return JsonResponse({"id": _id(call), "object": "response", "deleted": True})


async def cancel(call: Call) -> Response:
    """Mark a response as cancelled, and end it when it is still running."""
    return _json(call.rooms.responses.cancel(call.tenant, _id(call), mark_cancelled))


# ---- one exchange -----------------------------------------------------------------------------------------------------


def _open(call: Call, request: wire.InputTokensRequest, *, stores: bool) -> _Exchange:
    """Everything that can be refused before a place in the queue is taken is refused here."""
    wire.refuse_unserved(request)
    context, service = call.context, call.rooms.responses
    tools = read_tools(request.tools or (), context.facts)
    own_items, ignored_items = wire.input_items(request, context.facts)
    ignored = (*tools.ignored, *ignored_items)
    if ignored:
        call.rooms.log_once("built-in tools", "built-in tools of Responses requests are left out (--compat lenient)")
    thread = service.open_thread(
        call.tenant,
        response_id(context),
        previous_id=request.previous_response_id,
        conversation_id=request.conversation_id,
        stores=stores,
    )
    own_items = resolve_references(own_items, lambda item_id: service.output_item(thread.scope, item_id))
    history = unfold([*load_items(thread.items), *own_items])
    job = wire.to_job(request, history, tools, context)
    return _Exchange(thread, own_items, history, tools, job, ignored_header(ignored))


async def _start(call: Call, request: wire.ResponsesRequest, exchange: _Exchange) -> Answer | CompactedAnswer:
    rooms = call.rooms
    if request.context_management:
        thresholds = [entry.compact_threshold for entry in request.context_management if entry.compact_threshold]
        before = await rooms.compaction.is_due(exchange.job, min(thresholds, default=None))
        if before is not None:
            history = _history(call, request, exchange)
            return CompactedAnswer(await rooms.compaction.begin(history, tokens_before=before), rooms.chat)
    return await rooms.chat.start(exchange.job)


def _history(call: Call, request: wire.InputTokensRequest, exchange: _Exchange) -> History:
    history, tools = exchange.history, exchange.tools
    return History(
        job=exchange.job,
        pieces=[to_messages(piece, tools.flat_name) for piece in segments(history)],
        summary=next((item.text for item in history if isinstance(item, Summary)), None),
        shortened=lambda done: wire.to_job(request, wire_compaction.shortened(history, done), tools, call.context),
    )


def _keep(call: Call, exchange: _Exchange, builder: ResponseBuilder) -> None:
    output = [orjson.dumps(item) for item in builder.output]
    compacted: list[bytes] | None = None
    if any(item["type"] == "compaction" for item in builder.output):
        system = wire_compaction.system_items(exchange.history)
        compacted = [*(orjson.dumps(dump_item(item)) for item in system), *output]
    call.rooms.responses.keep(
        exchange.thread,
        orjson.dumps(builder.response),
        added=[*(orjson.dumps(dump_item(item)) for item in exchange.own_items), *output],
        output_ids=[item["id"] for item in builder.output],
        compacted=compacted,
    )


class _KeepingWriter(ResponseStreamWriter):
    """Stores the response before its last frames go out, so that a client can continue from it at once."""

    def __init__(self, builder: ResponseBuilder, keep: Callable[[], None]) -> None:
        super().__init__(builder)
        self._keep = keep

    def on(self, event: OutputEvent) -> bytes:
        frames = super().on(event)
        if isinstance(event, Completed):
            self._keep()
        return frames


class _Watched:
    """A running answer that tells when it is left."""

    def __init__(self, answer: Answer | CompactedAnswer, left: Callable[[], None]) -> None:
        self._answer = answer
        self._left = left

    def __aiter__(self) -> AsyncIterator[OutputEvent]:
        return aiter(self._answer)

    async def aclose(self) -> None:
        self._left()
        await self._answer.aclose()


def _id(call: Call) -> str:
    return str(call.request.path_params["id"])


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


ROUTES = (
    Route(
        "POST",
        "/v1/responses",
        create,
        "Answer (OpenAI Responses)",
        aliases=("/responses",),
        request=wire.ResponsesRequest,
        streams=True,
        statuses=(400, 413, 415, 501, 503),
        tag="OpenAI",
    ),
    Route(
        "POST",
        "/v1/responses/compact",
        compact,
        "Summarise the older part of a history",
        aliases=("/responses/compact",),
        request=wire_compaction.CompactRequest,
        statuses=(400, 413, 415, 501, 503),
        tag="OpenAI",
    ),
    Route(
        "POST",
        "/v1/responses/input_tokens",
        input_tokens,
        "Count the prompt tokens of a responses request",
        aliases=("/responses/input_tokens",),
        request=wire.InputTokensRequest,
        statuses=(400, 413, 415, 501),
        tag="OpenAI",
    ),
    Route(
        "GET",
        "/v1/responses/{id}",
        retrieve,
        "A stored response",
        aliases=("/responses/{id}",),
        statuses=(400, 404),
        tag="OpenAI",
    ),
    Route(
        "DELETE",
        "/v1/responses/{id}",
        delete,
        "Forget a stored response",
        aliases=("/responses/{id}",),
        statuses=(400, 404),
        tag="OpenAI",
    ),
    Route(
        "POST",
        "/v1/responses/{id}/cancel",
        cancel,
        "Cancel a response",
        aliases=("/responses/{id}/cancel",),
        statuses=(400, 404),
        tag="OpenAI",
    ),
)

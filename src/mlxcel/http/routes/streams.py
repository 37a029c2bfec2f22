"""Coming back to a stream, looking streams up, ending them."""

from __future__ import annotations

from starlette.responses import Response

from mlxcel.core.errors import InvalidRequest, NotFound
from mlxcel.http.call import Call
from mlxcel.http.responses import JsonResponse
from mlxcel.http.resumable import follow_stream
from mlxcel.http.route import Route
from mlxcel.wire.llama_server.streams import LookupRequest, render_lookup
from mlxcel.wire.parse import parse_body
from mlxcel.wire.sse import KEEP_ALIVE


async def resume(call: Call) -> Response:
    """Replay a stream from a byte offset, then follow it."""
    session = call.rooms.streams.get(call.tenant, _wanted(call))
    if session is None:
        raise NotFound("there is no stream for this conversation", param="conv_id")
    text = call.request.query_params.get("from") or "0"
    if not text.isdecimal() or len(text) > 18:
        raise InvalidRequest("'from' must be a byte offset", param="from")
    session.check_offset(int(text))
    return follow_stream(call, session, int(text), KEEP_ALIVE)


async def lookup(call: Call) -> Response:
    """Which of these conversations have a stream."""
    request = parse_body(LookupRequest, await call.json_bytes())
    return JsonResponse(render_lookup(call.rooms.streams.lookup(call.tenant, request.conversation_ids)))


async def end(call: Call) -> Response:
    """End a stream and forget it; repeating that changes nothing."""
    call.rooms.streams.remove(call.tenant, _wanted(call))
    return Response(status_code=204)


def _wanted(call: Call) -> str:
    conversation = call.request.query_params.get("conv_id", "").strip()
    if not conversation:
        raise InvalidRequest("'conv_id' is required", param="conv_id")
    return conversation


ROUTES = (
    Route(
        "GET",
        "/v1/stream",
        resume,
        "Come back to a stream (begun with X-Conversation-Id)",
        statuses=(400, 404),
        tag="Streams",
        query=("conv_id", "from"),
        media_type="text/event-stream",
    ),
    Route(
        "DELETE",
        "/v1/stream",
        end,
        "End a stream and forget it",
        statuses=(400,),
        successes=(204,),
        tag="Streams",
        query=("conv_id",),
    ),
    Route(
        "POST",
        "/v1/streams/lookup",
        lookup,
        "Which conversations have a stream",
        request=LookupRequest,
        statuses=(400, 413, 415),
        tag="Streams",
    ),
)

"""A prepared answer, streamed: events to frames, one chunk of bytes for all that is ready."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Protocol

from mlxcel.core.errors import Cancelled, MlxcelError
from mlxcel.core.events import ChoiceEvent, Completed, OutputEvent
from mlxcel.http.call import Call
from mlxcel.http.endpoint import InternalFault
from mlxcel.http.resumable import conversation_id, resumable_stream
from mlxcel.http.sse import EventStream
from mlxcel.wire.stream import StreamWriter

log = logging.getLogger(__name__)


class AnswerEvents(Protocol):
    """The events of an admitted request; closing it ends the generation."""

    def __aiter__(self) -> AsyncIterator[OutputEvent]:
        """Iterate once."""

    async def aclose(self) -> None:
        """End the generation; may be called at any time, and again."""


def stream_answer(
    call: Call,
    writer: StreamWriter,
    events: AnswerEvents,
    headers: dict[str, str] | None = None,
    *,
    counted: bool = True,
) -> EventStream:
    """The event stream of one answer. ``events`` is closed in every case.

    Args:
        counted: a healthy end is counted in the totals of /metrics.
    """
    frames = _frames(call, writer, events, counted)
    conversation = conversation_id(call)
    if conversation is not None:
        return resumable_stream(call, conversation, frames, events.aclose, writer.keep_alive, headers)
    return EventStream(
        frames,
        close=events.aclose,
        keep_alive=writer.keep_alive,
        ping_interval_s=call.rooms.ping_interval_s,
        headers=headers,
    )


async def _frames(call: Call, writer: StreamWriter, events: AnswerEvents, counted: bool) -> AsyncIterator[bytes]:
    completed: list[Completed] = []
    try:
        yield writer.open()
        async for event in events:
            inner = event.event if isinstance(event, ChoiceEvent) else event
            if isinstance(inner, Completed):
                completed.append(inner)
            yield writer.on(event)
        if counted and completed:
            call.rooms.count(completed)
    except Cancelled:
        return
    except MlxcelError as error:
        yield writer.fail(error)
    except Exception:
        log.exception("stream of request %s failed", call.id)
        yield writer.fail(InternalFault())

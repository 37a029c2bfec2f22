"""An answer as a response object, and the events through which it comes to be.

One builder serves both ways of answering: a stream sends the events, a plain answer only the object at the end. Every
``response`` in an event is complete, every item has a status, and ``sequence_number`` counts all events of a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlxcel.core.errors import CapacityError, MlxcelError, RequestError
from mlxcel.core.events import (
    CompactionCompleted,
    CompactionStarted,
    Completed,
    FinishReason,
    OutputEvent,
    PieceLogprob,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from mlxcel.wire.openai.logprobs import chat_logprobs
from mlxcel.wire.openai.responses.capsule import seal
from mlxcel.wire.openai.responses.envelope import usage_object
from mlxcel.wire.openai.responses.tools import ToolSet
from mlxcel.wire.sse import KEEP_ALIVE, frame

Event = dict[str, Any]
CompactionItemOf = Callable[[CompactionCompleted], dict[str, Any]]

_CUT_SHORT = (FinishReason.LENGTH, FinishReason.CANCELLED)


class ResponseBuilder:
    """Builds one response from output events.

    Args:
        head: see :func:`~mlxcel.wire.openai.responses.envelope.response_head`.
        tools: of the request; calls are shown under the names they were declared with.
        now: Unix time, for ``completed_at``.
        max_tool_calls: calls beyond this number are left out.
        seals_reasoning: add ``encrypted_content`` to reasoning items.
        compaction_item: makes the item of a compacted history.
    """

    def __init__(
        self,
        head: dict[str, Any],
        tools: ToolSet,
        *,
        now: Callable[[], float],
        max_tool_calls: int | None = None,
        seals_reasoning: bool = False,
        compaction_item: CompactionItemOf | None = None,
    ) -> None:
        self.response = head
        self._tools = tools
        self._now = now
        self._max_tool_calls = max_tool_calls
        self._seals_reasoning = seals_reasoning
        self._compaction_item = compaction_item
        self._stem = str(head["id"]).partition("_")[2]
        self._sequence = 0
        self._events: list[Event] = []
        self._output: list[dict[str, Any]] = []
        self._item: dict[str, Any] | None = None  # the open item
        self._pieces: list[str] = []  # of its text
        self._logprobs: list[PieceLogprob] = []
        self._call_index = -1

    @property
    def output(self) -> Sequence[dict[str, Any]]:
        """Finished items."""
        return self._output

    def open(self) -> list[Event]:
        """The first two events."""
        self._lifecycle("response.created")
        self._lifecycle("response.in_progress")
        return self._taken()

    def on(self, event: OutputEvent) -> list[Event]:
        """Events that follow from one output event. After ``Completed`` the response is final."""
        if isinstance(event, TextDelta):
            self._text_delta(event)
        elif isinstance(event, ReasoningDelta):
            self._reasoning_delta(event.text)
        elif isinstance(event, ToolCallStarted):
            self._call_started(event)
        elif isinstance(event, ToolCallDelta):
            self._call_delta(event)
        elif isinstance(event, CompactionStarted):
            self._emit("mlx.compaction.started", input_tokens_before=event.input_tokens_before)
        elif isinstance(event, CompactionCompleted):
            self._compacted(event)
        elif isinstance(event, Completed):
            self._complete(event)
        return self._taken()

    def fail(self, error: MlxcelError) -> list[Event]:
        """The events that end a stream with an error."""
        if self._item is not None:
            self._output.append(self._finished("incomplete"))
        self._emit("error", code=error.code or _error_code(error), message=error.message, param=error.param)
        self._settle("failed", error={"code": _error_code(error), "message": error.message})
        self._lifecycle("response.failed")
        return self._taken()

    # ---- items ----------------------------------------------------------------------------------------------------

    def _text_delta(self, event: TextDelta) -> None:
        is_open = self._item is not None and self._item["type"] == "message"
        if not event.text and not is_open:
            return  # logprobs of suppressed tokens, with no text that they could belong to
        if not is_open:
            self._begin_message()
        self._logprobs.extend(event.logprobs)
        if not event.text:
            return
        self._pieces.append(event.text)
        logprobs = chat_logprobs(event.logprobs)["content"]
        self._content_event("response.output_text.delta", delta=event.text, logprobs=logprobs)

    def _begin_message(self) -> None:
        self._begin({"id": self._item_id("msg"), "type": "message", "role": "assistant", "content": []})
        self._part_event("response.content_part.added", _output_text("", ()))

    def _reasoning_delta(self, text: str) -> None:
        if not text:
            return
        if self._item is None or self._item["type"] != "reasoning":
            blank: dict[str, Any] = {"summary": [], "content": [], "encrypted_content": None}
            self._begin({"id": self._item_id("rs"), "type": "reasoning"} | blank)
            self._part_event("response.content_part.added", {"type": "reasoning_text", "text": ""})
        self._pieces.append(text)
        self._content_event("response.reasoning_text.delta", delta=text)

    def _call_started(self, event: ToolCallStarted) -> None:
        self._end("completed")
        calls = sum(item["type"] == "function_call" for item in self._output)
        if self._max_tool_calls is not None and calls >= self._max_tool_calls:
            return
        namespace, name = self._tools.origin(event.name)
        item = {"id": self._item_id("fc"), "type": "function_call", "call_id": event.id, "name": name, "arguments": ""}
        self._begin(item if namespace is None else item | {"namespace": namespace})
        self._call_index = event.index

    def _call_delta(self, event: ToolCallDelta) -> None:
        """Only of the open call: an item that was done cannot be reopened, and a call over the limit has none."""
        if self._item is None or self._item["type"] != "function_call" or event.index != self._call_index:
            return
        self._pieces.append(event.fragment)
        self._item_event("response.function_call_arguments.delta", delta=event.fragment)

    def _compacted(self, event: CompactionCompleted) -> None:
        self._emit(
            "mlx.compaction.completed",
            input_tokens_before=event.input_tokens_before,
            input_tokens_after=event.input_tokens_after,
        )
        if self._compaction_item is not None:
            self._begin({"id": self._item_id("cmp")} | self._compaction_item(event))
            self._end("completed")

    def _begin(self, item: dict[str, Any]) -> None:
        self._end("completed")
        self._item = item | {"status": "in_progress"}
        self._emit("response.output_item.added", output_index=len(self._output), item=self._item)

    def _end(self, status: str) -> None:
        if self._item is None:
            return
        text = "".join(self._pieces)
        if self._item["type"] == "message":
            part = _output_text(text, self._logprobs)
            self._content_event("response.output_text.done", text=text, logprobs=part["logprobs"])
            self._part_event("response.content_part.done", part)
        elif self._item["type"] == "reasoning":
            self._content_event("response.reasoning_text.done", text=text)
            self._part_event("response.content_part.done", {"type": "reasoning_text", "text": text})
        elif self._item["type"] == "function_call":
            self._item_event("response.function_call_arguments.done", name=self._item["name"], arguments=text)
        index, item = len(self._output), self._finished(status)
        self._output.append(item)
        self._emit("response.output_item.done", output_index=index, item=item)

    def _finished(self, status: str) -> dict[str, Any]:
        """The open item with all that it got; there is none afterwards."""
        item, text = dict(self._item or {}), "".join(self._pieces)
        if item["type"] == "message":
            item["content"] = [_output_text(text, self._logprobs)]
        elif item["type"] == "reasoning":
            item["content"] = [{"type": "reasoning_text", "text": text}]
            item["encrypted_content"] = seal("reasoning", {"text": text}) if self._seals_reasoning else None
        elif item["type"] == "function_call":
            item["arguments"] = text
        item["status"] = status
        self._item, self._pieces, self._logprobs = None, [], []
        return item

    # ---- the end --------------------------------------------------------------------------------------------------

    def _complete(self, answer: Completed) -> None:
        self._end("incomplete" if answer.reason in _CUT_SHORT else "completed")
        said = any(item["type"] in ("message", "function_call") for item in self._output)
        if not said and answer.reason not in _CUT_SHORT:
            self._begin_message()  # an answer without a word is still an answer
            self._end("completed")
        usage = usage_object(answer.usage)
        if answer.reason is FinishReason.LENGTH:
            self._settle("incomplete", usage=usage, incomplete_details={"reason": "max_output_tokens"})
            self._lifecycle("response.incomplete")
        elif answer.reason is FinishReason.CANCELLED:
            self._settle("cancelled", usage=usage)
            self._lifecycle("response.incomplete")
        else:
            self._settle("completed", usage=usage, completed_at=int(self._now()))
            self._lifecycle("response.completed")

    def _settle(self, status: str, **fields: Any) -> None:
        texts = [part["text"] for item in self._output if item["type"] == "message" for part in item["content"]]
        final = {"status": status, "output": list(self._output), "output_text": "".join(texts)}
        self.response = self.response | final | fields

    # ---- events ---------------------------------------------------------------------------------------------------

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _emit(self, kind: str, **fields: Any) -> None:
        self._events.append({"type": kind, "sequence_number": self._sequence} | fields)
        self._sequence += 1

    def _lifecycle(self, kind: str) -> None:
        self._emit(kind, response=self.response)

    def _item_event(self, kind: str, **fields: Any) -> None:
        item_id = self._item["id"] if self._item is not None else ""
        self._emit(kind, item_id=item_id, output_index=len(self._output), **fields)

    def _content_event(self, kind: str, **fields: Any) -> None:
        self._item_event(kind, content_index=0, **fields)

    def _part_event(self, kind: str, part: dict[str, Any]) -> None:
        self._content_event(kind, part=part)

    def _item_id(self, prefix: str) -> str:
        """Unique: the request's own id, and the place of the item that comes next."""
        place = len(self._output) + (self._item is not None)
        return f"{prefix}_{self._stem}{place:02x}"


class ResponseStreamWriter:
    """Frames of one streamed response. OpenAI ends such a stream with its last event; there is no ``[DONE]``."""

    keep_alive = KEEP_ALIVE

    def __init__(self, builder: ResponseBuilder) -> None:
        self._builder = builder

    def open(self) -> bytes:
        """``response.created`` and ``response.in_progress``."""
        return _frames(self._builder.open())

    def on(self, event: OutputEvent) -> bytes:
        """Frames for one event."""
        return _frames(self._builder.on(event))

    def fail(self, error: MlxcelError) -> bytes:
        """An ``error`` event and ``response.failed``."""
        return _frames(self._builder.fail(error))


def _frames(events: Sequence[Event]) -> bytes:
    return b"".join(frame(event, event["type"]) for event in events)


def _output_text(text: str, logprobs: Sequence[PieceLogprob]) -> dict[str, Any]:
    shown = chat_logprobs(logprobs)["content"]
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": shown}


def _error_code(error: MlxcelError) -> str:
    """OpenAI's word for why a response failed. Agents look for an overflow's own code, which is none of them."""
    if error.code == "context_length_exceeded":
        return error.code
    if isinstance(error, RequestError):
        return "invalid_prompt"
    return "rate_limit_exceeded" if isinstance(error, CapacityError) else "server_error"

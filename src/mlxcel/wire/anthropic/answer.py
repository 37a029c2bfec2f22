"""Answers of POST /v1/messages: the message object and its event stream.

The prompt's token count is known when the stream opens, the part of it that came from the cache only after the prefill.
``message_start`` therefore reports the whole prompt as ``input_tokens``; ``message_delta``, whose counts are totals that
replace the earlier ones, splits it. ``input_tokens + cache_read_input_tokens`` is the prompt in both.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import orjson

from mlxcel.core.errors import MlxcelError
from mlxcel.core.events import (
    Completed,
    FinishReason,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from mlxcel.core.usage import Usage
from mlxcel.wire.anthropic.errors import error_body
from mlxcel.wire.context import RequestContext
from mlxcel.wire.sse import frame

_STOP_REASONS = {
    FinishReason.EOS: "end_turn",
    FinishReason.STOP_STRING: "stop_sequence",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.LOOP: "end_turn",
    FinishReason.CANCELLED: "end_turn",
    FinishReason.ERROR: "end_turn",  # only ever seen as an error event
}
_PING = frame({"type": "ping"}, "ping")
_SIGNATURE_CHARS = 32


def signature(thinking: str) -> str:
    """The opaque mark of a thinking block. Nothing is proved by it and nothing is checked when it comes back."""
    return f"mlxcel-v1-{hashlib.sha256(thinking.encode('utf-8', 'surrogatepass')).hexdigest()[:_SIGNATURE_CHARS]}"


def render(answer: Completed, context: RequestContext, *, omit_thinking: bool = False) -> dict[str, Any]:
    """The message object of a finished answer."""
    content: list[dict[str, Any]] = []
    if answer.reasoning:
        shown = "" if omit_thinking else answer.reasoning
        content.append({"type": "thinking", "thinking": shown, "signature": signature(answer.reasoning)})
    if answer.text:
        content.append({"type": "text", "text": answer.text, "citations": None})
    content.extend(
        {"type": "tool_use", "id": call.id, "name": call.name, "input": _tool_input(call.arguments)}
        for call in answer.tool_calls
    )
    return _message(context, content, _usage(answer.usage)) | _stop(answer)


def _message(context: RequestContext, content: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"msg_{context.request_id}",
        "type": "message",
        "role": "assistant",
        "model": context.facts.model_name,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": usage,
    }


def _stop(answer: Completed) -> dict[str, Any]:
    reason = FinishReason.TOOL_CALLS if answer.tool_calls and answer.reason is FinishReason.EOS else answer.reason
    return {
        "stop_reason": _STOP_REASONS[reason],
        "stop_sequence": answer.stop_string if reason is FinishReason.STOP_STRING else None,
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return _counts(usage) | {
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "inference_geo": None,
        "service_tier": "standard",
        "speed": None,
    }


def _counts(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "server_tool_use": None,
    }


def _tool_input(arguments: str) -> dict[str, Any]:
    """The arguments as the object that ``input`` has to be.

    What the model wrote may be no JSON object; it is then wrapped the way Anthropic's tool-use guide wraps it, so that
    the client can show it to the model again.
    """
    try:
        value = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": arguments}


class MessageStreamWriter:
    """Event frames of one streamed message.

    Args:
        context: the request's context.
        prompt_tokens: tokens of the rendered prompt.
        omit_thinking: report thinking blocks without their text.
    """

    keep_alive = _PING

    def __init__(self, context: RequestContext, *, prompt_tokens: int, omit_thinking: bool = False) -> None:
        self._context = context
        self._prompt_tokens = prompt_tokens
        self._omit_thinking = omit_thinking
        self._index = -1  # of the open or last block
        self._open: Literal["thinking", "text", "tool_use"] | None = None
        self._call_index = -1
        self._thinking = ""

    def open(self) -> bytes:
        """``message_start`` and a first ping."""
        message = _message(self._context, [], _usage(Usage(prompt_tokens=self._prompt_tokens)))
        return frame({"type": "message_start", "message": message}, "message_start") + _PING

    def on(self, event: OutputEvent) -> bytes:
        """Frames for one event."""
        if isinstance(event, TextDelta):
            return self._text(event.text) if event.text else b""
        if isinstance(event, ReasoningDelta):
            return self._reasoning(event.text) if event.text else b""
        if isinstance(event, ToolCallStarted):
            self._call_index = event.index
            return self._begin("tool_use", {"type": "tool_use", "id": event.id, "name": event.name, "input": {}})
        if isinstance(event, ToolCallDelta):
            # A block that was closed by the next call cannot be reopened.
            is_current = self._open == "tool_use" and event.index == self._call_index
            return self._delta({"type": "input_json_delta", "partial_json": event.fragment}) if is_current else b""
        return self._finish(event) if isinstance(event, Completed) else b""

    def fail(self, error: MlxcelError) -> bytes:
        """The ``error`` event."""
        return frame(error_body(error), "error")

    def _text(self, text: str) -> bytes:
        head = b"" if self._open == "text" else self._begin("text", {"type": "text", "text": "", "citations": None})
        return head + self._delta({"type": "text_delta", "text": text})

    def _reasoning(self, text: str) -> bytes:
        head = b""
        if self._open != "thinking":
            head = self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        self._thinking += text
        if self._omit_thinking:
            return head
        return head + self._delta({"type": "thinking_delta", "thinking": text})

    def _finish(self, answer: Completed) -> bytes:
        delta = _stop(answer) | {"stop_details": None, "container": None}
        body = {"type": "message_delta", "delta": delta, "usage": _counts(answer.usage)}
        return self._end() + frame(body, "message_delta") + frame({"type": "message_stop"}, "message_stop")

    def _begin(self, kind: Literal["thinking", "text", "tool_use"], block: dict[str, Any]) -> bytes:
        frames = self._end()
        self._index += 1
        self._open = kind
        body = {"type": "content_block_start", "index": self._index, "content_block": block}
        return frames + frame(body, "content_block_start")

    def _end(self) -> bytes:
        if self._open is None:
            return b""
        frames = b""
        if self._open == "thinking":
            frames = self._delta({"type": "signature_delta", "signature": signature(self._thinking)})
            self._thinking = ""
        self._open = None
        return frames + frame({"type": "content_block_stop", "index": self._index}, "content_block_stop")

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return frame({"type": "content_block_delta", "index": self._index, "delta": delta}, "content_block_delta")

"""The five ways to ask for text, spoken alike: for tests that hold of every surface, streamed or not.

Reading is strict: an answer has exactly one end, in the place where its surface puts it, and nothing follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from mlxcel.testing.frames import Frame, read_frames

Body = dict[str, Any]


class BrokenAnswer(Exception):
    """An answer that a strict client of its surface would refuse."""


@dataclass(slots=True)
class Answer:
    """What came back, in one vocabulary.

    Attributes:
        finish: the surface's own word for the end; None while there was none.
        error: the error object of an answer that failed.
        calls: name and arguments text of each function call.
    """

    text: str = ""
    reasoning: str = ""
    finish: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    error: Mapping[str, Any] | None = None
    calls: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Surface:
    """One way to ask.

    Attributes:
        path: the route.
        prompt: the fields that carry a prompt.
        limit: name of the field that limits the answer's tokens.
        stop: name of the field for stop strings; None where there is none.
        whole: reads a complete JSON answer.
        streamed: reads the frames of a stream.
    """

    path: str
    prompt: Callable[[str], Body]
    limit: str
    stop: str | None
    whole: Callable[[Any], Answer]
    streamed: Callable[[list[Frame]], Answer]

    def body(self, prompt: str, *, max_tokens: int = 64, stop: str | list[str] | None = None, **fields: Any) -> Body:
        """A request. ``fields`` are sent as they are."""
        body = self.prompt(prompt) | {self.limit: max_tokens} | fields
        if stop is not None and self.stop is not None:
            body[self.stop] = [stop] if self.stop == "stop_sequences" and isinstance(stop, str) else stop
        return body

    def read(self, status: int, content: bytes, content_type: str) -> Answer:
        """An answer of either kind, errors included.

        Raises:
            BrokenAnswer: it does not end as this surface's answers end.
        """
        if content_type.startswith("text/event-stream"):
            answer = self.streamed([frame for frame in read_frames(content) if frame.data is not None])
            if (answer.finish is None) == (answer.error is None):
                raise BrokenAnswer(f"a stream of {self.path} has no end, or two")
            return answer
        document = orjson.loads(content)
        if status >= 400:
            return Answer(error=document["error"])
        answer = self.whole(document)
        if answer.finish is None:
            raise BrokenAnswer(f"an answer of {self.path} has no finish reason")
        return answer


def _chat_turn(prompt: str) -> Body:
    return {"model": "any", "messages": [{"role": "user", "content": prompt}]}


# ---- chat and completions -----------------------------------------------------------------------------------------


def _openai_usage(answer: Answer, usage: Mapping[str, Any] | None) -> None:
    if usage is not None:
        answer.prompt_tokens = usage["prompt_tokens"]
        answer.completion_tokens = usage["completion_tokens"]
        answer.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]


def _read_chat(document: Any) -> Answer:
    choice = document["choices"][0]
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    answer = Answer(message["content"] or "", message.get("reasoning_content") or "", choice["finish_reason"], calls=calls)
    _openai_usage(answer, document["usage"])
    return answer


def _read_completion(document: Any) -> Answer:
    choice = document["choices"][0]
    answer = Answer(choice["text"], finish=choice["finish_reason"])
    _openai_usage(answer, document["usage"])
    return answer


def _read_chunks(frames: list[Frame]) -> Answer:
    """Chunks of chat and of completions: one finish reason, then perhaps the usage, then ``[DONE]``."""
    answer = Answer()
    if not frames or frames[-1].data != "[DONE]":
        raise BrokenAnswer("the last frame is not [DONE]")
    for frame in frames[:-1]:
        chunk = frame.data
        if "error" in chunk:
            answer.error, answer.finish = chunk["error"], None
            continue
        _openai_usage(answer, chunk.get("usage"))
        for choice in chunk["choices"]:
            if answer.finish is not None or answer.error is not None:
                raise BrokenAnswer("a choice goes on after its end")
            _add_delta(answer, choice.get("delta") or {"content": choice.get("text")})
            answer.finish = choice["finish_reason"]
    return answer


def _add_delta(answer: Answer, delta: Mapping[str, Any]) -> None:
    answer.text += delta.get("content") or ""
    answer.reasoning += delta.get("reasoning_content") or ""
    for call in delta.get("tool_calls") or ():
        if call["index"] == len(answer.calls):
            answer.calls.append((call["function"]["name"], ""))
        name, arguments = answer.calls[call["index"]]
        answer.calls[call["index"]] = (name, arguments + (call["function"].get("arguments") or ""))


# ---- llama-server -------------------------------------------------------------------------------------------------


def _read_native(document: Any) -> Answer:
    return Answer(
        document["content"],
        finish=document["stop_type"] if document["stop"] else None,
        prompt_tokens=document["tokens_evaluated"],
        cached_tokens=document["tokens_cached"],
        completion_tokens=document["tokens_predicted"],
    )


def _read_native_stream(frames: list[Frame]) -> Answer:
    answer = Answer()
    for frame in frames:
        if answer.finish is not None or answer.error is not None:
            raise BrokenAnswer("frames follow the final object")
        if "error" in frame.data:
            answer.error = frame.data["error"]
        elif frame.data["stop"]:
            text = answer.text + frame.data["content"]
            answer = _read_native(frame.data)
            answer.text = text
        else:
            answer.text += frame.data["content"]
    return answer


# ---- Responses ----------------------------------------------------------------------------------------------------


def _read_response(document: Any) -> Answer:
    answer = Answer(finish=document["status"])
    if document["status"] not in ("completed", "incomplete", "failed", "cancelled"):
        raise BrokenAnswer("a response without a final status")
    if document["error"] is not None:
        return Answer(error=document["error"])
    for item in document["output"]:
        if item["type"] == "message":
            answer.text += "".join(part["text"] for part in item["content"])
        elif item["type"] == "reasoning":
            answer.reasoning += "".join(part["text"] for part in item.get("content") or ())
        elif item["type"] == "function_call":
            answer.calls.append((item["name"], item["arguments"]))
    usage = document["usage"]
    answer.prompt_tokens, answer.completion_tokens = usage["input_tokens"], usage["output_tokens"]
    answer.cached_tokens = usage["input_tokens_details"]["cached_tokens"]
    return answer


def _read_response_stream(frames: list[Frame]) -> Answer:
    text = ""
    answer: Answer | None = None
    for place, frame in enumerate(frames):
        if answer is not None:
            raise BrokenAnswer("events follow the final one")
        if frame.data["sequence_number"] != place or frame.data["type"] != frame.event:
            raise BrokenAnswer("an event is out of order")
        if frame.event == "response.output_text.delta":
            text += frame.data["delta"]
        elif frame.event in ("response.completed", "response.incomplete", "response.failed"):
            answer = _read_response(frame.data["response"])
    if answer is None or (answer.error is None and answer.text != text):
        raise BrokenAnswer("no final event, or it says something else than the deltas")
    return answer


# ---- Messages -----------------------------------------------------------------------------------------------------


def _anthropic_usage(answer: Answer, usage: Mapping[str, Any]) -> None:
    answer.cached_tokens = usage["cache_read_input_tokens"]
    answer.prompt_tokens = usage["input_tokens"] + usage["cache_creation_input_tokens"] + answer.cached_tokens
    answer.completion_tokens = usage["output_tokens"]


def _read_message(document: Any) -> Answer:
    answer = Answer(finish=document["stop_reason"])
    for block in document["content"]:
        if block["type"] == "text":
            answer.text += block["text"]
        elif block["type"] == "thinking":
            answer.reasoning += block["thinking"]
        elif block["type"] == "tool_use":
            answer.calls.append((block["name"], orjson.dumps(block["input"]).decode()))
    _anthropic_usage(answer, document["usage"])
    return answer


def _read_message_stream(frames: list[Frame]) -> Answer:
    answer = Answer()
    has_stopped = False
    for frame in frames:
        if has_stopped or answer.error is not None:
            raise BrokenAnswer("events follow the end")
        _add_message_event(answer, frame)
        has_stopped = frame.event == "message_stop"
    if not has_stopped and answer.error is None:
        raise BrokenAnswer("the stream ends without message_stop")
    return answer


def _add_message_event(answer: Answer, frame: Frame) -> None:
    data = frame.data
    if frame.event == "error":
        answer.error, answer.finish = data["error"], None
    elif frame.event == "content_block_start" and data["content_block"]["type"] == "tool_use":
        answer.calls.append((data["content_block"]["name"], ""))
    elif frame.event == "content_block_delta":
        delta = data["delta"]
        answer.text += delta.get("text", "")
        answer.reasoning += delta.get("thinking", "")
        if "partial_json" in delta:
            name, arguments = answer.calls[-1]
            answer.calls[-1] = (name, arguments + delta["partial_json"])
    elif frame.event == "message_delta":
        answer.finish = data["delta"]["stop_reason"]
        _anthropic_usage(answer, data["usage"])


SURFACES: Final[Mapping[str, Surface]] = {
    "chat": Surface("/v1/chat/completions", _chat_turn, "max_tokens", "stop", _read_chat, _read_chunks),
    "completions": Surface(
        "/v1/completions", lambda prompt: {"prompt": prompt}, "max_tokens", "stop", _read_completion, _read_chunks
    ),
    "native": Surface(
        "/completion", lambda prompt: {"prompt": prompt}, "n_predict", "stop", _read_native, _read_native_stream
    ),
    "responses": Surface(
        "/v1/responses",
        lambda prompt: {"model": "any", "input": prompt},
        "max_output_tokens",
        None,
        _read_response,
        _read_response_stream,
    ),
    "messages": Surface("/v1/messages", _chat_turn, "max_tokens", "stop_sequences", _read_message, _read_message_stream),
}

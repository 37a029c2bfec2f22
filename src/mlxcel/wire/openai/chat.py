"""POST /v1/chat/completions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from mlxcel.core.errors import InvalidRequest, MlxcelError
from mlxcel.core.events import (
    AnswerEvent,
    ChoiceEvent,
    Completed,
    FinishReason,
    OutputEvent,
    PieceLogprob,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from mlxcel.core.jobs import ChatJob, GenerationOptions, ReasoningOptions
from mlxcel.wire.context import RequestContext
from mlxcel.wire.errors import error_body
from mlxcel.wire.openai.logprobs import chat_logprobs
from mlxcel.wire.openai.messages import (
    ChatMessage,
    NamedToolChoice,
    ToolDefinition,
    to_messages,
    to_tool_choice,
    to_tools,
)
from mlxcel.wire.openai.usage import draft_timings, finish_word, usage_object
from mlxcel.wire.parse import WireModel
from mlxcel.wire.sampling import SamplingFields, merge_options, thinking_budget
from mlxcel.wire.sse import DONE, KEEP_ALIVE, frame
from mlxcel.wire.structured import ResponseFormat, parse_response_format
from mlxcel.wire.thinking import effort_enables, template_kwargs

ID_PREFIX = "chatcmpl-"

MaxTokens = Annotated[int, Field(ge=-1, le=2**31 - 1)]


class StreamOptions(WireModel):
    include_usage: bool | None = None


class ChatRequest(SamplingFields):
    """Request body. ``model`` may name anything: the one loaded model answers."""

    model: str | None = None
    messages: list[ChatMessage]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: str | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    preserve_thinking: bool | None = None
    reasoning_effort: str | int | bool | None = None
    reasoning_format: str | None = None
    reasoning_control: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


def to_job(request: ChatRequest, context: RequestContext) -> ChatJob:
    """The neutral job.

    Raises:
        InvalidRequest: fields that contradict each other or are not served.
    """
    if request.n is not None and request.n > 1 and context.facts.compat == "strict":
        raise InvalidRequest("'n': only 1 choice is served; start the server with --compat lenient for more", param="n")
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs': true", param="top_logprobs")
    return ChatJob(
        id=context.request_id,
        messages=to_messages(request.messages),
        options=_options(request, context),
        tools=to_tools(request.tools),
        tool_choice=to_tool_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        reasoning=_reasoning(request),
        template_kwargs=template_kwargs(request.chat_template_kwargs, request.extra_body, request.preserve_thinking),
        continue_final=request.continue_final_message is not False and request.add_generation_prompt is not True,
    )


def _options(request: ChatRequest, context: RequestContext) -> GenerationOptions:
    limit = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    if limit == 0:
        raise InvalidRequest("'max_tokens': must be at least 1, or -1 for no limit", param="max_tokens")
    options = merge_options(
        request, context, max_tokens=limit, top_logprobs=(request.top_logprobs or 0) if request.logprobs else -1
    )
    constraint = parse_response_format(request.response_format, context.facts)
    return options if constraint is None else dataclasses.replace(options, constraint=constraint)


_FORMATS = ("none", "deepseek", "deepseek-legacy", "auto")


def _reasoning(request: ChatRequest) -> ReasoningOptions:
    if request.reasoning_format is not None and request.reasoning_format not in _FORMATS:
        raise InvalidRequest(f"'reasoning_format': must be one of {', '.join(_FORMATS)}", param="reasoning_format")
    effort = request.reasoning_effort
    word = None if effort is None else str(effort).strip()
    return ReasoningOptions(
        budget_tokens=thinking_budget(request),
        effort=word,
        enabled=None if word is None else effort_enables(word),
        format=request.reasoning_format,  # type: ignore[arg-type]
        can_be_ended=bool(request.reasoning_control),
    )


def response_id(context: RequestContext) -> str:
    """The id shown to the client."""
    return f"{ID_PREFIX}{context.request_id}"


def render(answers: Sequence[Completed], context: RequestContext) -> dict[str, Any]:
    """The whole non-streaming body; one choice an answer."""
    body = {
        "id": response_id(context),
        "object": "chat.completion",
        "created": int(context.created_s),
        "model": context.facts.model_name,
        "system_fingerprint": None,
        "choices": [_choice(index, answer, context) for index, answer in enumerate(answers)],
        "usage": _total_usage(answers),
    }
    timings = draft_timings(answers[0].usage, answers[0].timings)
    return body if timings is None else body | {"timings": timings}


def _total_usage(answers: Sequence[Completed]) -> dict[str, Any]:
    """The prompt counts once, the completions add up."""
    first = answers[0].usage
    return usage_object(
        dataclasses.replace(
            first,
            completion_tokens=sum(answer.usage.completion_tokens for answer in answers),
            reasoning_tokens=sum(answer.usage.reasoning_tokens for answer in answers),
        )
    )


def _choice(index: int, answer: Completed, context: RequestContext) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.tool_calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.tool_calls
        ]
    message |= _reasoning_fields(answer.reasoning, context)
    if reasoning_only(answer):
        message["reasoning_only"] = True
    return {
        "index": index,
        "message": message,
        "finish_reason": finish_word(answer.reason),
        "logprobs": chat_logprobs(answer.logprobs) if answer.logprobs else None,
    }


def reasoning_only(answer: Completed) -> bool:
    """Tokens were produced, but everything stayed in the reasoning channel."""
    return bool(not answer.text and not answer.tool_calls and answer.reasoning)


def _reasoning_fields(text: str, context: RequestContext) -> dict[str, Any]:
    if not text:
        return {}
    alias = context.facts.reasoning_alias
    return {"reasoning_content": text} | ({alias: text} if alias else {})


class ChatStreamWriter:
    """Chunks of a streamed answer (``object`` "chat.completion.chunk"), of one choice or several.

    Several choices share one stream; the usage chunk and ``[DONE]`` follow when the last of them has ended.
    """

    keep_alive = KEEP_ALIVE

    def __init__(self, context: RequestContext, *, include_usage: bool, choices: int = 1) -> None:
        self._context = context
        self._include_usage = include_usage
        self._choices = choices
        self._answers: list[Completed] = []
        self._head = {
            "id": response_id(context),
            "object": "chat.completion.chunk",
            "created": int(context.created_s),
            "model": context.facts.model_name,
            "system_fingerprint": None,
        }

    def open(self) -> bytes:
        """The role chunks."""
        return b"".join(self._chunk(index, {"role": "assistant"}) for index in range(self._choices))

    def on(self, event: OutputEvent) -> bytes:
        """Frames for one event."""
        if isinstance(event, ChoiceEvent):
            return self._on(event.event, event.index)
        return self._on(event, 0)

    def _on(self, event: AnswerEvent, index: int) -> bytes:
        if isinstance(event, TextDelta):
            return self._chunk(index, {"content": event.text}, logprobs=event.logprobs)
        if isinstance(event, ReasoningDelta):
            return self._chunk(index, _reasoning_fields(event.text, self._context), logprobs=event.logprobs)
        if isinstance(event, ToolCallStarted):
            function = {"name": event.name, "arguments": ""}
            call = {"index": event.index, "id": event.id, "type": "function", "function": function}
            return self._chunk(index, {"tool_calls": [call]})
        if isinstance(event, ToolCallDelta):
            call = {"index": event.index, "function": {"arguments": event.fragment}}
            return self._chunk(index, {"tool_calls": [call]})
        return self._finish(index, event) if isinstance(event, Completed) else b""

    def fail(self, error: MlxcelError) -> bytes:
        """A finish chunk with reason "error", then the error object, then the end marker."""
        return self._chunk(0, {}, finish=FinishReason.ERROR) + frame(error_body(error)) + DONE

    def _finish(self, index: int, answer: Completed) -> bytes:
        self._answers.append(answer)
        delta = {"reasoning_only": True} if reasoning_only(answer) else {}
        timings = draft_timings(answer.usage, answer.timings)
        extra = {} if timings is None else {"timings": timings}
        frames = self._chunk(index, delta, finish=answer.reason, extra=extra)
        if len(self._answers) < self._choices:
            return frames
        if self._include_usage:
            frames += frame(self._head | {"choices": [], "usage": _total_usage(self._answers)})
        return frames + DONE

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: Sequence[PieceLogprob] = (),
        finish: FinishReason | None = None,
        extra: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "finish_reason": None if finish is None else finish_word(finish),
            "logprobs": chat_logprobs(logprobs) if logprobs else None,
        }
        return frame(self._head | {"choices": [choice]} | (extra or {}))

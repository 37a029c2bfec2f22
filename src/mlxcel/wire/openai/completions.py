"""POST /v1/completions (the legacy OpenAI route; llama-server's native one is another surface)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from mlxcel.core.errors import InvalidRequest, MlxcelError
from mlxcel.core.events import ChoiceEvent, Completed, FinishReason, OutputEvent, PieceLogprob, TextDelta
from mlxcel.core.jobs import CompletionJob
from mlxcel.core.usage import Usage
from mlxcel.wire.context import RequestContext
from mlxcel.wire.errors import error_body
from mlxcel.wire.openai.chat import MaxTokens, StreamOptions
from mlxcel.wire.openai.usage import draft_timings, finish_word, usage_object
from mlxcel.wire.sampling import SamplingFields, merge_options
from mlxcel.wire.sse import DONE, KEEP_ALIVE, frame
from mlxcel.wire.structured import ResponseFormat, parse_response_format

MAX_PROMPTS = 128


class CompletionRequest(SamplingFields):
    """Request body; ``prompt`` is a text, texts, token ids or lists of ids."""

    model: str | None = None
    prompt: str | list[str] | list[int] | list[list[int]]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    best_of: Annotated[int, Field(ge=1, le=1)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | bool | None = None
    response_format: ResponseFormat | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


def to_jobs(request: CompletionRequest, context: RequestContext) -> list[CompletionJob]:
    """One job a choice: ``n`` for each prompt, in OpenAI's order.

    Raises:
        InvalidRequest: fields that contradict each other or are not served.
    """
    if request.n is not None and request.n > 1 and context.facts.compat == "strict":
        raise InvalidRequest("'n': only 1 choice is served; start the server with --compat lenient for more", param="n")
    if request.suffix:
        raise InvalidRequest("'suffix' is not supported here; use POST /infill", param="suffix")
    limit = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    if limit == 0:
        raise InvalidRequest("'max_tokens': must be at least 1, or -1 for no limit", param="max_tokens")
    options = merge_options(request, context, max_tokens=limit, top_logprobs=_top_logprobs(request.logprobs))
    constraint = parse_response_format(request.response_format, context.facts)
    if constraint is not None:
        options = dataclasses.replace(options, constraint=constraint)
    prompts = [prompt for prompt in _prompts(request.prompt) for _ in range(request.n or 1)]
    return [
        CompletionJob(f"{context.request_id}-{index}", prompt, options, echo=bool(request.echo))
        for index, prompt in enumerate(prompts)
    ]


def _top_logprobs(value: int | bool | None) -> int:
    if value is None or value is False:
        return -1
    return 0 if value is True else value


def _prompts(prompt: str | Sequence[Any]) -> list[str | tuple[int, ...]]:
    if isinstance(prompt, str):
        _check_text(prompt, "prompt")
        return [prompt]
    if not prompt:
        raise InvalidRequest("'prompt' must not be an empty list", param="prompt")
    if isinstance(prompt[0], int):
        return [tuple(int(token_id) for token_id in prompt)]
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequest(f"'prompt': at most {MAX_PROMPTS} prompts in one request", param="prompt")
    prompts: list[str | tuple[int, ...]] = []
    for index, item in enumerate(prompt):
        if isinstance(item, str):
            _check_text(item, f"prompt[{index}]")
        prompts.append(item if isinstance(item, str) else tuple(item))
    return prompts


def _check_text(text: str, path: str) -> None:
    """An entirely empty prompt starts from the begin token; blanks alone are a mistake."""
    if text and not text.strip():
        raise InvalidRequest(f"'{path}' must not be blank", param=path)


def response_id(context: RequestContext) -> str:
    """The id shown to the client."""
    return f"cmpl-{context.request_id}"


def render(answers: Sequence[Completed], prompts: Sequence[str | None], context: RequestContext) -> dict[str, Any]:
    """The whole body; ``prompts`` holds the text to echo for each answer, or None."""
    choices = []
    for index, (answer, prompt) in enumerate(zip(answers, prompts, strict=True)):
        offset = len(prompt or "")
        choices.append(
            {
                "index": index,
                "text": (prompt or "") + answer.text,
                "finish_reason": finish_word(answer.reason),
                "logprobs": legacy_logprobs(answer.logprobs, offset) if answer.logprobs else None,
            }
        )
    body = _head(context) | {"choices": choices, "usage": usage_object(_total([answer.usage for answer in answers]))}
    timings = draft_timings(answers[0].usage, answers[0].timings) if len(answers) == 1 else None
    return body if timings is None else body | {"timings": timings}


def legacy_logprobs(pieces: Sequence[PieceLogprob], offset: int = 0) -> dict[str, Any]:
    """OpenAI's completions shape: parallel lists; ``offset`` is the first token's place in the text."""
    offsets: list[int] = []
    for piece in pieces:
        offsets.append(offset)
        offset += len(piece.text)
    return {
        "tokens": [piece.text for piece in pieces],
        "token_logprobs": [piece.logprob for piece in pieces],
        "top_logprobs": [{other.text: other.logprob for other in piece.top} for piece in pieces],
        "text_offset": offsets,
    }


def _head(context: RequestContext) -> dict[str, Any]:
    return {
        "id": response_id(context),
        "object": "text_completion",
        "created": int(context.created_s),
        "model": context.facts.model_name,
        "system_fingerprint": None,
    }


def _total(usages: Sequence[Usage]) -> Usage:
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
    )


class CompletionStreamWriter:
    """Chunks of a streamed completion; several choices share one stream."""

    keep_alive = KEEP_ALIVE

    def __init__(self, context: RequestContext, prompts: Sequence[str | None], *, include_usage: bool) -> None:
        self._prompts = prompts
        self._include_usage = include_usage
        self._offsets = [len(prompt or "") for prompt in prompts]
        self._usages: list[Usage] = []
        self._head = _head(context)

    def open(self) -> bytes:
        """The echoed prompts, when asked for."""
        return b"".join(self._chunk(index, prompt) for index, prompt in enumerate(self._prompts) if prompt)

    def on(self, event: OutputEvent) -> bytes:
        """Frames for one event."""
        index, inner = (event.index, event.event) if isinstance(event, ChoiceEvent) else (0, event)
        if isinstance(inner, TextDelta):
            return self._chunk(index, inner.text, inner.logprobs)
        if not isinstance(inner, Completed):
            return b""
        self._usages.append(inner.usage)
        timings = draft_timings(inner.usage, inner.timings)
        frames = self._chunk(index, "", finish=inner.reason, extra={} if timings is None else {"timings": timings})
        if len(self._usages) < len(self._prompts):
            return frames
        if self._include_usage:
            frames += frame(self._head | {"choices": [], "usage": usage_object(_total(self._usages))})
        return frames + DONE

    def fail(self, error: MlxcelError) -> bytes:
        """A finish chunk with reason "error", then the error object, then the end marker."""
        return self._chunk(0, "", finish=FinishReason.ERROR) + frame(error_body(error)) + DONE

    def _chunk(
        self,
        index: int,
        text: str,
        logprobs: Sequence[PieceLogprob] = (),
        finish: FinishReason | None = None,
        extra: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {
            "index": index,
            "text": text,
            "finish_reason": None if finish is None else finish_word(finish),
            "logprobs": legacy_logprobs(logprobs, self._offsets[index]) if logprobs else None,
        }
        self._offsets[index] += sum(len(piece.text) for piece in logprobs)
        return frame(self._head | {"choices": [choice]} | (extra or {}))

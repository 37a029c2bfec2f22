"""POST /completion and /completions: llama-server's native route, in shape and in manners."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from mlxcel.core.errors import InvalidRequest, MlxcelError
from mlxcel.core.events import Completed, FinishReason, OutputEvent, PieceLogprob, Started, TextDelta
from mlxcel.core.jobs import CompletionJob, GenerationOptions
from mlxcel.core.usage import Timings, Usage
from mlxcel.wire.context import RequestContext
from mlxcel.wire.errors import error_body
from mlxcel.wire.llama_server.fields import NativeFields, reasoning_options, to_options
from mlxcel.wire.sse import KEEP_ALIVE, frame
from mlxcel.wire.timings import timings_object

TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class CompletionRequest(NativeFields):
    """Request body; ``prompt`` is a text, token ids, or texts and ids mixed."""

    prompt: str | list[str | TokenId]


def to_job(request: CompletionRequest, context: RequestContext) -> CompletionJob:
    """The neutral job.

    Raises:
        InvalidRequest: a field that is not served, or a prompt of the wrong kind.
    """
    prompt = request.prompt
    if prompt == []:
        raise InvalidRequest("'prompt' must not be an empty list", param="prompt")
    return CompletionJob(
        id=context.request_id,
        prompt=prompt if isinstance(prompt, str) else tuple(prompt),
        options=to_options(request, context),
        reasoning=reasoning_options(request),
    )


_STOP_TYPES = {
    FinishReason.EOS: "eos",
    FinishReason.LOOP: "eos",
    FinishReason.TOOL_CALLS: "eos",
    FinishReason.STOP_STRING: "word",
    FinishReason.LENGTH: "limit",
}


def render(answer: Completed, request: NativeFields, options: GenerationOptions, prompt: str, model: str) -> dict[str, Any]:
    """The full object: the body of a whole answer and the last frame of a stream."""
    body: dict[str, Any] = {
        "index": 0,
        "content": answer.text,
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": model,
        "tokens_predicted": answer.usage.completion_tokens,
        "tokens_evaluated": answer.usage.prompt_tokens,
        "generation_settings": settings_object(options),
        "prompt": prompt,
        "has_new_line": "\n" in answer.text,
        "truncated": answer.truncated,
        "stop_type": _STOP_TYPES.get(answer.reason, "none"),
        "stopping_word": answer.stop_string or "",
        "tokens_cached": answer.usage.cached_tokens,
        "timings": timings_object(answer.usage, answer.timings),
    }
    if answer.logprobs:
        body["completion_probabilities"] = [_probability(piece) for piece in answer.logprobs]
    return _selected(body, request.response_fields)


def _selected(body: dict[str, Any], fields: Any) -> dict[str, Any]:
    """Only the paths asked for, each under its whole path as the key; missing ones are left out."""
    if not isinstance(fields, list) or not fields or not all(isinstance(path, str) for path in fields):
        return body
    chosen: dict[str, Any] = {}
    for path in fields:
        value: Any = body
        for step in path.split("/"):
            if not isinstance(value, dict) or step not in value:
                break
            value = value[step]
        else:
            chosen[path] = value
    return chosen


def _probability(piece: PieceLogprob) -> dict[str, Any]:
    return _entry(piece) | {"top_logprobs": [_entry(other) for other in piece.top]}


def _entry(piece: PieceLogprob) -> dict[str, Any]:
    return {"id": piece.token_id, "token": piece.text, "bytes": list(piece.bytes), "logprob": piece.logprob}


def settings_object(options: GenerationOptions) -> dict[str, Any]:
    """``generation_settings``: what was in force."""
    sampling = options.sampling
    return {
        "n_predict": -1 if options.max_tokens is None else options.max_tokens,
        "seed": 2**64 - 1 if sampling.seed is None else sampling.seed,
        "temperature": sampling.temperature,
        "dynatemp_range": sampling.dynatemp_range,
        "dynatemp_exponent": sampling.dynatemp_exponent,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_n_sigma": sampling.top_n_sigma,
        "xtc_probability": sampling.xtc_probability,
        "xtc_threshold": sampling.xtc_threshold,
        "typical_p": sampling.typical_p,
        "repeat_last_n": sampling.repetition_context_tokens,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "dry_multiplier": sampling.dry_multiplier,
        "dry_base": sampling.dry_base,
        "dry_allowed_length": sampling.dry_allowed_length,
        "dry_penalty_last_n": sampling.dry_penalty_last_n,
        "mirostat": sampling.mirostat,
        "mirostat_tau": sampling.mirostat_tau,
        "mirostat_eta": sampling.mirostat_eta,
        "stop": list(options.stop),
        "max_tokens": -1 if options.max_tokens is None else options.max_tokens,
        "n_keep": options.keep_tokens,
        "ignore_eos": options.ignore_eos,
        "n_probs": max(sampling.top_logprobs, 0),
        "min_keep": sampling.min_keep,
        "lora": [{"id": adapter, "scale": scale} for adapter, scale in options.adapters or ()],
    }


class CompletionStreamWriter:
    """Frames of one streamed native completion: partial objects, then the full object. There is no end marker."""

    keep_alive = KEEP_ALIVE

    def __init__(self, request: NativeFields, options: GenerationOptions, prompt: str, model: str) -> None:
        self._request = request
        self._options = options
        self._prompt = prompt
        self._model = model
        self._usage = Usage()
        self._timings = Timings()
        self._predicted = 0

    def open(self) -> bytes:
        """Nothing: the first frame carries the first text."""
        return b""

    def on(self, event: OutputEvent) -> bytes:
        """Frames for one event."""
        if isinstance(event, Started):
            self._usage = Usage(event.prompt_tokens, event.cached_tokens)
            self._timings = Timings(prefill_s=event.prefill_s)
            return b""
        if isinstance(event, TextDelta):
            self._predicted += max(len(event.token_ids), 1)
            return self._partial(event)
        if not isinstance(event, Completed):
            return b""
        body = render(event, self._request, self._options, self._prompt, self._model)
        if "content" in body:
            body["content"] = ""  # the text has been sent already
        return frame(body)

    def fail(self, error: MlxcelError) -> bytes:
        """The error object as the last frame."""
        return frame(error_body(error))

    def _partial(self, event: TextDelta) -> bytes:
        body: dict[str, Any] = {
            "index": 0,
            "content": event.text,
            "tokens": list(event.token_ids),
            "stop": False,
            "id_slot": 0,
            "tokens_predicted": self._predicted,
            "tokens_evaluated": self._usage.prompt_tokens,
        }
        if event.logprobs:
            body["completion_probabilities"] = [_probability(piece) for piece in event.logprobs]
        if self._request.include_timings:
            usage = Usage(self._usage.prompt_tokens, self._usage.cached_tokens, self._predicted)
            body["timings"] = timings_object(usage, self._timings)
        return frame(body)

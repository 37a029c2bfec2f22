"""Request fields of the native generation routes, read as llama-server reads them: out of range often means off."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, Literal

from pydantic import Field

from mlxcel.core.errors import InvalidRequest
from mlxcel.core.jobs import GenerationOptions, OutputConstraint, ReasoningOptions
from mlxcel.wire.context import RequestContext
from mlxcel.wire.parse import WireModel
from mlxcel.wire.sampling import ExtraBody, fold_seed, parse_breakers, parse_logit_bias, parse_stops

N_PREDICT_MAX = 2**31 - 1
_MAX_PROBS = 100

Count = Annotated[int, Field(ge=-1, le=2**31 - 1)]
Finite = Annotated[float, Field(ge=-1e6, le=1e6)]


class LoraScale(WireModel):
    id: Annotated[int, Field(ge=0)]
    scale: Finite


class NativeFields(WireModel):
    """Fields shared by /completion and /infill; every one optional."""

    n_predict: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None
    temperature: Finite | None = None
    dynatemp_range: Finite | None = None
    dynatemp_exponent: Finite | None = None
    top_k: int | None = None
    top_p: Finite | None = None
    min_p: Finite | None = None
    typical_p: Finite | None = None
    top_n_sigma: Finite | None = None
    p_less: bool | None = None
    min_keep: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    repeat_last_n: Count | None = None
    frequency_penalty: Finite | None = None
    presence_penalty: Finite | None = None
    dry_multiplier: Finite | None = None
    dry_base: Finite | None = None
    dry_allowed_length: Count | None = None
    dry_penalty_last_n: Count | None = None
    dry_sequence_breakers: list[int | str] | None = None
    xtc_probability: Finite | None = None
    xtc_threshold: Finite | None = None
    mirostat: int | None = None
    mirostat_tau: Finite | None = None
    mirostat_eta: Finite | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | list[list[float | int | str | bool]] | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    n_probs: Annotated[int, Field(ge=0, le=_MAX_PROBS)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=_MAX_PROBS)] | bool | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    cache_prompt: bool | None = None
    extra_body: ExtraBody | None = None
    n_keep: Count | None = None
    lora: list[LoraScale] | None = None
    thinking_budget_tokens: Count | None = None
    thinking_token_budget: Count | None = None
    reasoning_budget: Count | None = None
    response_format: dict[str, Any] | None = None
    response_fields: Any = None
    timings_per_token: bool | None = None
    stream_options: Any = None
    prompt_cache_key: str | None = None
    # Refused unless they change nothing:
    n: int | None = None
    n_cmpl: int | None = None
    n_indent: int | None = None
    t_max_predict_ms: int | None = None
    return_progress: bool | None = None
    return_tokens: bool | None = None
    verbose: bool | None = None
    post_sampling_probs: bool | None = None

    @property
    def include_timings(self) -> bool:
        return bool(self.timings_per_token)


_INERT: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "n_cmpl": (None, 1),
    "n_indent": (None, 0),
    "t_max_predict_ms": (None, -1, 0),
    "return_progress": (None, False),
    "return_tokens": (None, False),
    "verbose": (None, False),
    "post_sampling_probs": (None, False),
}


def check_fields(fields: NativeFields) -> None:
    """
    Raises:
        InvalidRequest: a field that is not served here, named in the message.
    """
    for name, inert in _INERT.items():
        if getattr(fields, name) not in inert:
            raise InvalidRequest(f"Field '{name}': this value is not supported", param=name)
    if fields.response_format is not None and fields.response_format.get("type", "text") != "text":
        raise InvalidRequest(
            "'response_format' is not supported on this route; use json_schema here or POST /v1/chat/completions",
            param="response_format",
        )
    if isinstance(fields.stream_options, dict):
        include = fields.stream_options.get("include_usage", False)
        if not isinstance(include, bool):
            kind = _json_type(include)
            raise InvalidRequest(f"Field 'include_usage': type must be boolean, but is {kind}", param="include_usage")


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    return {str: "string", int: "number", float: "number", list: "array", dict: "object"}.get(type(value), "unknown")


def n_predict(fields: NativeFields) -> int | None:
    """The limit in force, None when not given. 0 evaluates the prompt and still yields one token.

    Raises:
        InvalidRequest: outside -1 .. 2147483647.
    """
    names: tuple[Literal["n_predict", "max_tokens", "max_completion_tokens"], ...]
    names = ("n_predict", "max_tokens", "max_completion_tokens")
    for name in names:
        value: int | None = getattr(fields, name)
        if value is None:
            continue
        if not -1 <= value <= N_PREDICT_MAX:
            raise InvalidRequest(
                f"Field 'n_predict': Value must be between -1 <= value <= {N_PREDICT_MAX}, but got {value}", param=name
            )
        return 1 if value == 0 else value
    return None


def to_options(fields: NativeFields, context: RequestContext) -> GenerationOptions:
    """The request's options over the server's defaults.

    Raises:
        InvalidRequest: see :func:`check_fields` and :func:`n_predict`.
    """
    check_fields(fields)
    limit = n_predict(fields)
    defaults = context.facts.defaults
    ids, texts = defaults.sampling.logit_bias, defaults.logit_bias_texts
    if fields.logit_bias is not None:
        ids, texts = parse_logit_bias(fields.logit_bias)
    changes = _sampling_changes(fields) | {"logit_bias": ids, "top_logprobs": _top_logprobs(fields)}
    breakers = defaults.dry_breaker_texts
    if fields.dry_sequence_breakers is not None:
        changes["dry_breaker_ids"], breakers = parse_breakers(fields.dry_sequence_breakers)
    cache = fields.cache_prompt
    if cache is None and fields.extra_body is not None:
        cache = fields.extra_body.cache_prompt
    return dataclasses.replace(
        defaults,
        sampling=dataclasses.replace(defaults.sampling, **changes),
        max_tokens=defaults.max_tokens if limit is None else limit,
        stop=parse_stops(fields.stop),
        ignore_eos=defaults.ignore_eos if fields.ignore_eos is None else fields.ignore_eos,
        priority=context.priority,
        cache_prompt=cache,
        cache_scope=context.cache_scope,
        session=fields.prompt_cache_key,
        constraint=_constraint(fields) or defaults.constraint,
        keep_tokens=defaults.keep_tokens if fields.n_keep is None else fields.n_keep,
        adapters=None if fields.lora is None else tuple((entry.id, entry.scale) for entry in fields.lora),
        dry_breaker_texts=breakers,
        logit_bias_texts=texts,
    )


def reasoning_options(fields: NativeFields) -> ReasoningOptions:
    """The thinking budget in any of its spellings."""
    spellings = (fields.thinking_budget_tokens, fields.thinking_token_budget, fields.reasoning_budget)
    return ReasoningOptions(budget_tokens=next((value for value in spellings if value is not None), None))


_PLAIN = {  # request field -> (SamplingParams field, lowest usable, highest usable, value that switches it off)
    "temperature": ("temperature", 0.0, math.inf, 0.0),
    "dynatemp_range": ("dynatemp_range", 0.0, math.inf, 0.0),
    "dynatemp_exponent": ("dynatemp_exponent", 0.0, math.inf, 1.0),
    "top_p": ("top_p", 0.0, 1.0, 1.0),
    "min_p": ("min_p", 0.0, 1.0, 0.0),
    "typical_p": ("typical_p", 1e-9, 1.0, 1.0),
    "top_n_sigma": ("top_n_sigma", 0.0, math.inf, -1.0),
    "frequency_penalty": ("frequency_penalty", -math.inf, math.inf, 0.0),
    "presence_penalty": ("presence_penalty", -math.inf, math.inf, 0.0),
    "dry_multiplier": ("dry_multiplier", 0.0, math.inf, 0.0),
    "dry_base": ("dry_base", 1.0, math.inf, 1.75),
    "xtc_probability": ("xtc_probability", 0.0, 1.0, 0.0),
    "xtc_threshold": ("xtc_threshold", 0.0, 1.0, 0.1),
    "mirostat": ("mirostat", 0, 2, 0),
    "mirostat_tau": ("mirostat_tau", 0.0, math.inf, 5.0),
    "mirostat_eta": ("mirostat_eta", 0.0, math.inf, 0.1),
}
_AS_IS = {
    "p_less": "p_less",
    "min_keep": "min_keep",
    "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "repetition_context_tokens",
    "dry_penalty_last_n": "dry_penalty_last_n",
}


def _sampling_changes(fields: NativeFields) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name, (target, lowest, highest, off) in _PLAIN.items():
        value = getattr(fields, name)
        if value is not None:
            changes[target] = value if lowest <= value <= highest else off
    for name, target in _AS_IS.items():
        value = getattr(fields, name)
        if value is not None:
            changes[target] = value
    if fields.dry_allowed_length is not None:
        changes["dry_allowed_length"] = max(fields.dry_allowed_length, 0)
    if fields.top_k is not None:
        changes["top_k"] = max(fields.top_k, 0)
    if fields.seed is not None:
        changes["seed"] = fold_seed(fields.seed)
    return changes


def _top_logprobs(fields: NativeFields) -> int:
    value = fields.n_probs if fields.n_probs is not None else fields.logprobs
    return int(value) if value else -1


def _constraint(fields: NativeFields) -> OutputConstraint | None:
    if fields.json_schema is not None:
        return OutputConstraint("json_schema", fields.json_schema)
    return OutputConstraint("gbnf", fields.grammar) if fields.grammar else None

"""Sampling fields that the OpenAI routes share, and their merge over the server's defaults.

Ranges are those of the reference; a value outside is a 400 that names the field. The native llama-server routes have
their own, more lenient reading in ``wire/llama_server``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from mlxcel.core.errors import InvalidRequest
from mlxcel.core.jobs import GenerationOptions
from mlxcel.core.sampling import LoopDetection, SamplingParams
from mlxcel.wire.context import RequestContext
from mlxcel.wire.parse import WireModel

_MAX_STOPS = 256
_MAX_TEXTS = 1024  # entries of a list whose texts have to be encoded
_MAX_TEXT_CHARS = 16_384  # of all texts of one field together: they are read before the request has a place of its own
_MAX_BIAS = 1e6  # beyond it float32 sums lose the logit; a larger bias counts as this one, which forces or bans as well
_MAX_ID_DIGITS = 18
_UINT64 = 2**64

Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class ExtraBody(WireModel):
    """The nested form of vendor fields, as clients send it when they do not flatten ``extra_body``."""

    cache_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    preserve_thinking: bool | None = None


class SamplingFields(WireModel):
    """Mixin: every field optional, ``null`` the same as absent."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Probability | None = None
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_n_sigma: Annotated[float, Field(ge=0)] | None = None
    p_less: bool | None = None
    min_keep: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    repetition_context_size: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | list[list[float | int | str | bool]] | None = None
    dry_multiplier: Annotated[float, Field(ge=0, le=100)] | None = None
    dry_base: Annotated[float, Field(ge=1, le=100)] | None = None
    dry_allowed_length: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    dry_penalty_last_n: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    dry_sequence_breakers: list[int | str] | None = None
    xtc_probability: Probability | None = None
    xtc_threshold: Annotated[float, Field(ge=0, le=0.5)] | None = None
    mirostat: Annotated[int, Field(ge=0, le=2)] | None = None
    mirostat_tau: Annotated[float, Field(ge=0, le=100)] | None = None
    mirostat_eta: Annotated[float, Field(ge=0, le=100)] | None = None
    dynatemp_range: Annotated[float, Field(ge=0, le=100)] | None = None
    dynatemp_exponent: Annotated[float, Field(ge=0, le=100)] | None = None
    max_pattern_size: Annotated[int, Field(ge=0, le=4096)] | None = None
    min_pattern_size: Annotated[int, Field(ge=0, le=4096)] | None = None
    min_count: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    cache_prompt: bool | None = None
    thinking_budget_tokens: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    thinking_token_budget: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    reasoning_budget: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    extra_body: ExtraBody | None = None


_PLAIN = {  # request field -> SamplingParams field
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "top_n_sigma": "top_n_sigma",
    "p_less": "p_less",
    "min_keep": "min_keep",
    "repetition_penalty": "repetition_penalty",
    "repetition_context_size": "repetition_context_tokens",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "dry_multiplier": "dry_multiplier",
    "dry_base": "dry_base",
    "dry_allowed_length": "dry_allowed_length",
    "dry_penalty_last_n": "dry_penalty_last_n",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
    "dynatemp_range": "dynatemp_range",
    "dynatemp_exponent": "dynatemp_exponent",
}


def merge_options(
    fields: SamplingFields, context: RequestContext, *, max_tokens: int | None, top_logprobs: int = -1
) -> GenerationOptions:
    """The request's options over the server's defaults.

    Args:
        max_tokens: the endpoint's own limit field; None takes the default.
        top_logprobs: see :class:`~mlxcel.core.sampling.SamplingParams`.

    Raises:
        InvalidRequest: a bias, breaker or stop list that cannot be used.
    """
    defaults = context.facts.defaults
    changes: dict[str, Any] = {
        target: value for name, target in _PLAIN.items() if (value := getattr(fields, name)) is not None
    }
    if fields.top_k is not None:
        changes["top_k"] = max(fields.top_k, 0)
    if fields.seed is not None:
        changes["seed"] = fold_seed(fields.seed)
    ids, texts = defaults.sampling.logit_bias, defaults.logit_bias_texts
    if fields.logit_bias is not None:
        ids, texts = parse_logit_bias(fields.logit_bias)
    breaker_texts = defaults.dry_breaker_texts
    if fields.dry_sequence_breakers is not None:
        changes["dry_breaker_ids"], breaker_texts = parse_breakers(fields.dry_sequence_breakers)
    sampling: SamplingParams = dataclasses.replace(defaults.sampling, **changes, logit_bias=ids, top_logprobs=top_logprobs)
    return dataclasses.replace(
        defaults,
        sampling=sampling,
        max_tokens=defaults.max_tokens if max_tokens is None else max_tokens,
        stop=parse_stops(fields.stop),
        ignore_eos=defaults.ignore_eos if fields.ignore_eos is None else fields.ignore_eos,
        priority=context.priority,
        loop=_loop(fields),
        cache_prompt=_cache_prompt(fields),
        cache_scope=context.cache_scope,
        session=fields.prompt_cache_key or fields.user,
        dry_breaker_texts=breaker_texts,
        logit_bias_texts=texts,
    )


def fold_seed(seed: int) -> int | None:
    """-1 means random; any other value is folded into the unsigned range, so that every integer is usable."""
    return None if seed == -1 else seed % _UINT64


def parse_stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """Stop strings without empty ones, which would match everywhere.

    Raises:
        InvalidRequest: more than 256 of them, or more text than stop strings can need.
    """
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    _check_texts(stops, "stop", most=_MAX_STOPS)
    return tuple(text for text in stops if text)


def parse_breakers(breakers: list[int | str]) -> tuple[frozenset[int], tuple[str, ...]]:
    """DRY sequence breakers, by token id and by text.

    Raises:
        InvalidRequest: too many texts, or too long ones.
    """
    texts = tuple(item for item in breakers if isinstance(item, str) and item)
    _check_texts(texts, "dry_sequence_breakers", most=_MAX_TEXTS)
    return frozenset(item for item in breakers if isinstance(item, int)), texts


def _check_texts(texts: Sequence[str], name: str, *, most: int) -> None:
    if len(texts) > most:
        raise InvalidRequest(f"'{name}': at most {most} texts", param=name)
    if sum(map(len, texts)) > _MAX_TEXT_CHARS:
        raise InvalidRequest(f"'{name}': at most {_MAX_TEXT_CHARS} characters in all texts together", param=name)


def parse_logit_bias(
    bias: dict[str, float] | list[list[float | int | str | bool]],
) -> tuple[tuple[tuple[int, float], ...], tuple[tuple[str, float], ...]]:
    """Biases by token id and by text: OpenAI's ``{"50256": -100}`` and llama-server's ``[[50256, false], ["Hi", 2.0]]``.

    Raises:
        InvalidRequest: an entry that is neither, too many texts, or too long ones.
    """
    entries: list[tuple[Any, Any]] = list(bias.items()) if isinstance(bias, dict) else []
    if isinstance(bias, list):
        if any(len(pair) != 2 for pair in bias):
            raise InvalidRequest("'logit_bias': every entry must be a pair of token and bias", param="logit_bias")
        entries = [(pair[0], pair[1]) for pair in bias]
    ids: list[tuple[int, float]] = []
    texts: list[tuple[str, float]] = []
    for token, value in entries:
        if value is not False and isinstance(value, (bool, str)):
            raise InvalidRequest("'logit_bias': a bias must be a number or false", param="logit_bias")
        amount = float("-inf") if value is False else max(-_MAX_BIAS, min(float(value), _MAX_BIAS))
        token_id = _token_id(token, spelled=isinstance(bias, dict))
        if token_id is not None:
            ids.append((token_id, amount))
        elif isinstance(token, str):
            texts.append((token, amount))
        else:
            raise InvalidRequest("'logit_bias': a token must be an id or a text", param="logit_bias")
    _check_texts([text for text, _ in texts], "logit_bias", most=_MAX_TEXTS)
    return tuple(ids), tuple(texts)


def _token_id(token: object, *, spelled: bool) -> int | None:
    """The id that a bias names; ``spelled`` as digits where JSON knows no number, in the keys of an object."""
    if isinstance(token, int) and not isinstance(token, bool) and token >= 0:
        return token
    if spelled and isinstance(token, str):
        digits = token.strip()
        if digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_ID_DIGITS:
            return int(digits)
    return None


def thinking_budget(fields: SamplingFields) -> int | None:
    """The first of the budget's spellings that is set."""
    spellings = (fields.thinking_budget_tokens, fields.thinking_token_budget, fields.reasoning_budget)
    return next((value for value in spellings if value is not None), None)


def _loop(fields: SamplingFields) -> LoopDetection | None:
    """Any of the three fields overrides the server's policy, an explicit 0 included."""
    given = (fields.max_pattern_size, fields.min_pattern_size, fields.min_count)
    if all(value is None for value in given):
        return None
    largest = fields.max_pattern_size or 0
    smallest = min(max(fields.min_pattern_size or 1, 1), max(largest, 1))
    return LoopDetection(largest, smallest, fields.min_count or 0)


def _cache_prompt(fields: SamplingFields) -> bool | None:
    if fields.cache_prompt is not None:
        return fields.cache_prompt
    return fields.extra_body.cache_prompt if fields.extra_body is not None else None

"""Counters of one request, in tokens and seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of prompt_tokens, taken from the prefix cache
    completion_tokens: int = 0
    reasoning_tokens: int = 0  # of completion_tokens

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class DraftStats:
    """Speculative decoding, for requests that ran at least one verify round."""

    kind: str
    drafted_tokens: int
    accepted_tokens: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall-clock figures of one request. ``prefill_s`` covers the prompt tokens not cached; ``decode_s`` the rest."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    draft: DraftStats | None = None

"""How the next token is chosen: one immutable record per request.

Field meanings follow the documented chain (``docs/api/sampling.md``): token bias, penalties, top-n-sigma, p-less,
typical, top-k, top-p, min-p, XTC, then temperature and the draw. Ranges are checked at the wire edge, because dialects
differ in what they do with an out-of-range value; the values here are always usable.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoopDetection:
    """Stop when a pattern of ``min_pattern_tokens``..``max_pattern_tokens`` repeats ``min_count`` times at the tail."""

    max_pattern_tokens: int
    min_pattern_tokens: int = 1
    min_count: int = 4

    @property
    def enabled(self) -> bool:
        return self.max_pattern_tokens > 0 and self.min_count >= 2


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Settings of one row. Defaults switch every processor off except the plain draw at temperature 0.8."""

    temperature: float = 0.8
    top_k: int = 0  # 0 or >= vocabulary size keeps every token
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    top_n_sigma: float = -1.0  # < 0 off
    p_less: bool = False
    min_keep: int = 0  # truncating processors keep at least this many tokens
    repetition_penalty: float = 1.0
    repetition_context_tokens: int = 64  # 0 off, -1 whole context
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 0  # 0 and -1: whole context
    dry_breaker_ids: frozenset[int] = frozenset()  # single-token breakers
    dry_breaker_sequences: tuple[tuple[int, ...], ...] = ()  # string breakers that take several tokens
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    xtc_protected_ids: frozenset[int] = frozenset()  # newline and end-of-generation tokens
    mirostat: int = 0  # 0 off, 1, 2
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, bias); -inf bans
    seed: int | None = None  # None draws a fresh one
    top_logprobs: int = -1  # -1: no logprobs; 0: the chosen token only; k: the k best besides

    @property
    def is_greedy(self) -> bool:
        """True when the draw is an argmax (temperature 0 or ``top_k == 1``) and no adaptive sampler replaces it."""
        return self.temperature <= 0.0 or (self.top_k == 1 and self.mirostat == 0)

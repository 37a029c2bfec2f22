"""One open row: its settings, its random stream and its history."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlxcel.core.ports import Constraint
from mlxcel.core.sampling import SamplingParams
from mlxcel.core.work import RowSpec
from mlxcel.runners.generate.sampler.history import DryMatcher, TokenCounts
from mlxcel.runners.generate.sampler.randomness import stream_key


@dataclass(slots=True, eq=False)
class Row:
    """State of a row between draws.

    Attributes:
        position: where the next token goes, counted from the start of the prompt.
        bias: token id -> what is added to its logit.
        counts: None when no count penalty is set.
        dry: None when DRY is off.
        surprise_limit: Mirostat's running limit mu, in bits.
    """

    row_id: int
    params: SamplingParams
    stream: np.uint64
    position: int
    bias: dict[int, float]
    counts: TokenCounts | None
    dry: DryMatcher | None
    constraint: Constraint | None
    surprise_limit: float

    @classmethod
    def of(cls, spec: RowSpec, vocab_size: int) -> Row:
        """The state before the first draw. Biases of ids outside the vocabulary are dropped; repeated ids add up."""
        params = spec.sampling
        bias: dict[int, float] = {}
        for token, value in params.logit_bias:
            if 0 <= token < vocab_size:
                bias[token] = bias.get(token, 0.0) + value
        counted = params.repetition_context_tokens != 0 and (
            params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        )
        dry = params.dry_multiplier != 0.0 and params.dry_base >= 1.0
        known = [token for token in spec.prompt_ids if 0 <= token < vocab_size] if counted else []
        return cls(
            row_id=spec.row_id,
            params=params,
            stream=stream_key(params.seed),
            position=len(spec.prompt_ids),
            bias=bias,
            counts=TokenCounts(known, params.repetition_context_tokens) if counted else None,
            dry=DryMatcher(spec.prompt_ids, params) if dry else None,
            constraint=spec.constraint,
            surprise_limit=2.0 * params.mirostat_tau,
        )

    def take(self, token: int) -> None:
        """Append a token that was chosen or forced."""
        self.position += 1
        if self.counts is not None:
            self.counts.push(token)
        if self.dry is not None:
            self.dry.push(token)

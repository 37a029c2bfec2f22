"""Speculative decoding: who proposes tokens, how many, and when it is worth it.

What a drafter proposes is verified in the model's next forward pass, and only the model's own draws are kept, so the answer
is the same as without. Two things keep the cost down: each row adapts the length of its proposals to what was accepted
lately and pauses when nothing is (:class:`DraftPace`), and the engine stops drafting altogether while it loses time by it
(:class:`DraftBalance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mlxcel.core.usage import DraftStats

_EMPTY_ROUNDS = 3  # rounds without an accepted token before a pause
_FIRST_PAUSE_STEPS = 4
_LONGEST_PAUSE_STEPS = 32


@dataclass(frozen=True, slots=True)
class DraftWish:
    """A row that would like a proposal.

    Attributes:
        tokens: the row's context; it may only grow until :meth:`Drafter.forget`.
        limit: most tokens to propose, at least 1.
        stop_ids: nothing is proposed from one of these on.
    """

    row_id: int
    tokens: Sequence[int]
    limit: int
    stop_ids: frozenset[int]


class Drafter(Protocol):
    """Guesses how contexts go on. Called by the owner thread only.

    Attributes:
        kind: its name in ``timings``.
        max_tokens: most tokens of one proposal that pay, when the operator sets no limit.
        credit_steps: what it may cost before it has to pay; see :class:`DraftBalance`.
    """

    kind: str
    max_tokens: int
    credit_steps: int

    def propose(self, wishes: Sequence[DraftWish]) -> list[tuple[int, ...]]:
        """One proposal a wish, in order; empty where nothing can be guessed."""

    def forget(self, row_id: int) -> None:
        """The row ended, or gave up its state and may come back with another context. Unknown ids are ignored."""

    def close(self) -> None:
        """Free everything. No call follows."""


class DraftPace:
    """How many tokens one row asks for, and what became of them.

    Policy "graded": the next proposal is 2 tokens longer than twice what the last one got accepted, ``max_tokens`` at most;
    after three rounds in a row without an accepted token, a pause of 4 steps, doubling up to 32 for as long as nothing is
    accepted.
    """

    __slots__ = (
        "_empty_rounds", "_length", "_max_tokens", "_pause_steps", "_paused",
        "accepted_tokens", "drafted_tokens", "kind", "rounds",
    )  # fmt: skip

    def __init__(self, kind: str, max_tokens: int) -> None:
        self.kind = kind
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self.rounds = 0
        self._max_tokens = max_tokens
        self._length = min(2, max_tokens)
        self._empty_rounds = 0
        self._pause_steps = _FIRST_PAUSE_STEPS
        self._paused = 0

    def next_tokens(self) -> int:
        """Tokens to ask for in this step; 0 in a pause, which this call brings one step nearer to its end."""
        if self._paused:
            self._paused -= 1
            return 0
        return self._length

    def settle(self, proposed_tokens: int, accepted_tokens: int) -> None:
        """Learn how a proposal (of at least one token) fared."""
        self.rounds += 1
        self.drafted_tokens += proposed_tokens
        self.accepted_tokens += accepted_tokens
        self._length = min(self._max_tokens, 2 * accepted_tokens + 2)
        if accepted_tokens:
            self._empty_rounds = 0
            self._pause_steps = _FIRST_PAUSE_STEPS
            return
        self._empty_rounds += 1
        if self._empty_rounds >= _EMPTY_ROUNDS:
            self._empty_rounds = 0
            self._paused = self._pause_steps
            self._pause_steps = min(2 * self._pause_steps, _LONGEST_PAUSE_STEPS)

    def stats(self) -> DraftStats | None:
        """None when nothing was ever proposed."""
        return DraftStats(self.kind, self.drafted_tokens, self.accepted_tokens, self.rounds) if self.rounds else None


class DraftBalance:
    """Keeps drafting from costing more than ``_ALLOWED_LOSS`` of the decoding time, by measurement.

    Every decode step earns that share of its time. A step with drafts pays what it took longer than plain steps would have
    taken for the same tokens, and earns what it was faster. Drafting rests while the balance is negative.

    Args:
        credit_steps: the balance starts with so many plain steps. For drafters that invest in a row before they propose
            anything for it.
    """

    _ALLOWED_LOSS = 0.02  # 3 % are meant; what drafting costs beside the measured steps takes the rest
    _LIMIT_STEPS = 8  # no single step counts for more than this many plain steps; nor does past success, beyond the credit

    def __init__(self, credit_steps: int = 0) -> None:
        self._credit_steps = credit_steps
        self._balances_s: dict[int, float] = {}  # by number of decoding rows, in powers of two

    def allows(self, decode_rows: int) -> bool:
        return self._balances_s.get(decode_rows.bit_length(), 0.0) >= 0.0

    def observe(
        self, *, decode_rows: int, accepted_tokens: int, drafted: bool, step_s: float, plain_step_s: float,
        draft_s: float = 0.0,
    ) -> None:
        """Take a step without prompt pieces.

        Args:
            accepted_tokens: tokens it gave beyond one a row.
            drafted: it verified drafts.
            plain_step_s: average of a step without drafts.
            draft_s: what making the proposals took, found any or not.
        """
        limit_s = self._LIMIT_STEPS * plain_step_s
        credit_s = self._credit_steps * plain_step_s
        gain_s = -draft_s
        if drafted:
            gain_s += plain_step_s * (1.0 + accepted_tokens / decode_rows) - step_s
        change_s = self._ALLOWED_LOSS * step_s + max(-limit_s, gain_s)
        bucket = decode_rows.bit_length()
        balance_s = self._balances_s.get(bucket, credit_s)
        self._balances_s[bucket] = min(max(limit_s, credit_s), balance_s + change_s)

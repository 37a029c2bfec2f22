"""Prompt lookup: what followed a row's newest tokens the last time is proposed again (Saxena 2023, Prompt Lookup Decoding).

No model is needed, and the verification decides what is kept, so the answer is the same as without. Two things keep the cost
down: each row adapts the length of its proposals to what was accepted lately and pauses when nothing is, and the engine
stops drafting altogether while it loses time by it (:class:`DraftBalance`).
"""

from __future__ import annotations

from collections.abc import Sequence

from mlxcel.core.usage import DraftStats

KIND = "prompt-lookup"
_GRAM_TOKENS = 3
_MAX_PROPOSED_TOKENS = 7
_EMPTY_ROUNDS = 3  # rounds without an accepted token before a pause
_FIRST_PAUSE_STEPS = 4
_LONGEST_PAUSE_STEPS = 32


class PromptLookup:
    """Proposals for one row.

    Policy "graded": the next proposal is 2 tokens longer than twice what the last one got accepted, 7 at most; after three
    rounds in a row without an accepted token, a pause of 4 steps, doubling up to 32 for as long as nothing is accepted.
    """

    def __init__(self) -> None:
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self.rounds = 0
        self._followers: dict[tuple[int, ...], int] = {}  # n-gram -> position after its latest occurrence
        self._indexed_tokens = 0
        self._candidate: int | None = None  # position after the occurrence before the one at the very end
        self._length = 2
        self._empty_rounds = 0
        self._pause_steps = _FIRST_PAUSE_STEPS
        self._paused = 0

    def propose(self, tokens: Sequence[int], limit: int, stop_ids: frozenset[int]) -> tuple[int, ...]:
        """Guess how ``tokens`` go on.

        Args:
            tokens: the row's context; between calls it may only grow.
            limit: most tokens to propose.
            stop_ids: nothing is proposed from one of these on.
        """
        self._index(tokens)
        if self._paused:
            self._paused -= 1
            return ()
        start = self._candidate
        count = min(self._length, limit)
        if start is None or count <= 0:
            return ()
        period = len(tokens) - start  # a text that repeats itself goes on repeating
        proposal: list[int] = []
        for place in range(count):
            token_id = tokens[start + place % period]
            if token_id in stop_ids:
                break
            proposal.append(token_id)
        return tuple(proposal)

    def settle(self, proposed_tokens: int, accepted_tokens: int) -> None:
        """Learn how a proposal (of at least one token) fared."""
        self.rounds += 1
        self.drafted_tokens += proposed_tokens
        self.accepted_tokens += accepted_tokens
        self._length = min(_MAX_PROPOSED_TOKENS, 2 * accepted_tokens + 2)
        if accepted_tokens:
            self._empty_rounds = 0
            self._pause_steps = _FIRST_PAUSE_STEPS
            return
        self._empty_rounds += 1
        if self._empty_rounds >= _EMPTY_ROUNDS:
            self._empty_rounds = 0
            self._paused = self._pause_steps
            self._pause_steps = min(2 * self._pause_steps, _LONGEST_PAUSE_STEPS)

    def restart(self) -> None:
        """The row's context was rewritten."""
        self._followers.clear()
        self._indexed_tokens = 0
        self._candidate = None

    def stats(self) -> DraftStats | None:
        """None when nothing was ever proposed."""
        return DraftStats(KIND, self.drafted_tokens, self.accepted_tokens, self.rounds) if self.rounds else None

    def _index(self, tokens: Sequence[int]) -> None:
        followers = self._followers
        candidate = self._candidate
        for end in range(max(self._indexed_tokens + 1, _GRAM_TOKENS), len(tokens) + 1):
            gram = tuple(tokens[end - _GRAM_TOKENS : end])
            candidate = followers.get(gram)
            followers[gram] = end
        self._candidate = candidate
        self._indexed_tokens = len(tokens)


class DraftBalance:
    """Keeps drafting from costing more than ``_ALLOWED_LOSS`` of the decoding time, by measurement.

    Every decode step earns that share of its time. A step with drafts pays what it took longer than plain steps would have
    taken for the same tokens, and earns what it was faster. Drafting rests while the balance is negative.
    """

    _ALLOWED_LOSS = 0.03
    _LIMIT_STEPS = 8  # no single step, and no past success, counts for more than this many plain steps

    def __init__(self) -> None:
        self._balances_s: dict[int, float] = {}  # by number of decoding rows, in powers of two

    def allows(self, decode_rows: int) -> bool:
        return self._balances_s.get(decode_rows.bit_length(), 0.0) >= 0.0

    def observe(self, *, decode_rows: int, accepted_tokens: int, drafted: bool, step_s: float, plain_step_s: float) -> None:
        """Take a step without prompt pieces.

        Args:
            accepted_tokens: tokens it gave beyond one a row.
            drafted: it verified drafts.
            plain_step_s: average of a step without drafts.
        """
        limit_s = self._LIMIT_STEPS * plain_step_s
        change_s = self._ALLOWED_LOSS * step_s
        if drafted:
            saved_s = plain_step_s * (1.0 + accepted_tokens / decode_rows) - step_s
            change_s += max(-limit_s, saved_s)
        bucket = decode_rows.bit_length()
        self._balances_s[bucket] = min(limit_s, self._balances_s.get(bucket, 0.0) + change_s)

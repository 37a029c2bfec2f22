"""Prompt lookup: what followed a row's newest tokens the last time is proposed again (Saxena 2023, Prompt Lookup Decoding).

No model is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlxcel.engine.draft import DraftWish

_GRAM_TOKENS = 3


class PromptLookup:
    """A :class:`~mlxcel.engine.draft.Drafter` that looks into each row's own context."""

    kind = "prompt-lookup"
    max_tokens = 7
    credit_steps = 0

    def __init__(self) -> None:
        self._indexes: dict[int, _Index] = {}

    def propose(self, wishes: Sequence[DraftWish]) -> list[tuple[int, ...]]:
        return [self._propose(wish) for wish in wishes]

    def forget(self, row_id: int) -> None:
        self._indexes.pop(row_id, None)

    def close(self) -> None:
        self._indexes.clear()

    def _propose(self, wish: DraftWish) -> tuple[int, ...]:
        index = self._indexes.get(wish.row_id)
        if index is None:
            index = self._indexes[wish.row_id] = _Index()
        tokens = wish.tokens
        start = index.extend(tokens)
        if start is None:
            return ()
        period = len(tokens) - start  # a text that repeats itself goes on repeating
        proposal: list[int] = []
        for place in range(wish.limit):
            token_id = tokens[start + place % period]
            if token_id in wish.stop_ids:
                break
            proposal.append(token_id)
        return tuple(proposal)


class _Index:
    """The n-grams of one context."""

    __slots__ = ("_candidate", "_followers", "_indexed_tokens")

    def __init__(self) -> None:
        self._followers: dict[tuple[int, ...], int] = {}  # n-gram -> position after its latest occurrence
        self._indexed_tokens = 0
        self._candidate: int | None = None

    def extend(self, tokens: Sequence[int]) -> int | None:
        """Take in what is new; the position after the occurrence before the one at the very end."""
        followers = self._followers
        candidate = self._candidate
        for end in range(max(self._indexed_tokens + 1, _GRAM_TOKENS), len(tokens) + 1):
            gram = tuple(tokens[end - _GRAM_TOKENS : end])
            candidate = followers.get(gram)
            followers[gram] = end
        self._candidate = candidate
        self._indexed_tokens = len(tokens)
        return candidate

"""What a row has said so far, kept up to date token by token, in the form the penalties need."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mlxcel.core.sampling import SamplingParams

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

_FIRST_CAPACITY = 128


class TokenCounts:
    """How often each token occurs among the last ``window_tokens`` tokens (prompt included), as two parallel arrays.

    Adding a token costs constant time; reading costs nothing.

    Args:
        tokens: what the row begins with.
        window_tokens: positive; -1 counts the whole context.
    """

    def __init__(self, tokens: Sequence[int], window_tokens: int) -> None:
        self._window_tokens = window_tokens
        self._window: deque[int] = deque(tokens[-window_tokens:] if window_tokens > 0 else ())
        counted = Counter(self._window if window_tokens > 0 else tokens)
        self._place = {token: place for place, token in enumerate(counted)}
        capacity = max(_FIRST_CAPACITY, 2 * len(counted))
        self._ids = np.zeros(capacity, dtype=np.int64)
        self._counts = np.zeros(capacity, dtype=np.float32)
        self._ids[: len(counted)] = list(counted)
        self._counts[: len(counted)] = list(counted.values())

    @property
    def ids(self) -> IntArray:
        """The distinct tokens; a view that the next :meth:`push` may change."""
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> FloatArray:
        """Occurrences of :attr:`ids`, all positive; a view likewise."""
        return self._counts[: len(self._place)]

    def push(self, token: int) -> None:
        """Append a token; the oldest leaves a full window."""
        if self._window_tokens > 0:
            if len(self._window) == self._window_tokens:
                self._remove(self._window.popleft())
            self._window.append(token)
        place = self._place.get(token)
        if place is None:
            place = self._place[token] = len(self._place)
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token
            self._counts[place] = 0.0
        self._counts[place] += 1.0

    def _remove(self, token: int) -> None:
        place = self._place[token]
        self._counts[place] -= 1.0
        if self._counts[place] == 0.0:
            del self._place[token]
            last = len(self._place)
            if place != last:  # the last entry fills the gap
                moved = int(self._ids[last])
                self._place[moved] = place
                self._ids[place] = moved
                self._counts[place] = self._counts[last]


class DryMatcher:
    """The repeats that the DRY penalty punishes (p-e-w 2024, https://github.com/oobabooga/text-generation-webui/pull/5677).

    A token is punished when it would extend a repeat of at least ``dry_allowed_length`` tokens: the context ends with a run
    that also occurs earlier, followed there by that token. The penalty is ``multiplier * base ** (length - allowed)``. A run
    never reaches over a sequence breaker, and a breaker of one token is never punished; this is llama.cpp's definition.

    Args:
        tokens: what the row begins with.
        params: the ``dry_*`` settings.
    """

    def __init__(self, tokens: Sequence[int], params: SamplingParams) -> None:
        self._multiplier = params.dry_multiplier
        self._base = params.dry_base
        self._allowed = params.dry_allowed_length
        self._window_tokens = params.dry_penalty_last_n
        self._single_breakers = np.array(sorted(params.dry_breaker_ids), dtype=np.int64)
        self._breakers = _breakers_by_last(params)
        # Beyond this exponent the penalty leaves float32.
        log_base = math.log(self._base)
        self._max_exponent = math.floor(math.log(np.finfo(np.float32).max) / log_base) if log_base > 1e-6 else 0
        self._length = len(tokens)
        capacity = max(_FIRST_CAPACITY, 2 * self._length)
        self._tokens = np.zeros(capacity, dtype=np.int64)
        self._tokens[: self._length] = tokens
        # _runs[j]: how many tokens up to and including j equal the tokens up to and including the last one.
        self._runs = np.zeros(capacity, dtype=np.int64)
        self._runs[: max(self._length - 1, 0)] = _suffix_runs(tokens)
        self._breaker_start = self._breaker_end = -1
        for end in range(self._length):
            self._note_breaker(end)

    def push(self, token: int) -> None:
        """Append a token. Takes time in proportion to the context, in vector operations."""
        length = self._length
        if length == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
            self._runs = np.concatenate([self._runs, np.zeros_like(self._runs)])
        if length > 0:
            same = self._tokens[:length] == token
            longer = self._runs[: length - 1] + 1
            self._runs[0] = same[0]
            np.multiply(longer, same[1:], out=self._runs[1:length])
        self._tokens[length] = token
        self._length = length + 1
        self._note_breaker(length)

    def penalties(self) -> tuple[IntArray, FloatArray]:
        """Distinct tokens that would extend a repeat, and what to subtract from their logits."""
        length = self._length
        window = min(length, self._window_tokens) if self._window_tokens > 0 else length
        start = length - window
        limit = length - 1 - self._breaker_end if self._breaker_start >= start else window
        if window <= self._allowed or limit < self._allowed:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
        runs = np.minimum(self._runs[start : length - 1], np.arange(1, window))
        ends = np.flatnonzero(runs >= self._allowed)
        ids, place = np.unique(self._tokens[start + 1 + ends], return_inverse=True)
        longest = np.zeros(len(ids), dtype=np.int64)
        np.maximum.at(longest, place, np.minimum(runs[ends], limit))
        if len(self._single_breakers):
            punished = ~np.isin(ids, self._single_breakers)
            ids, longest = ids[punished], longest[punished]
        exponents = longest - self._allowed
        if self._max_exponent > 0:
            exponents = np.minimum(exponents, self._max_exponent)
        return ids, (self._multiplier * np.power(self._base, exponents, dtype=np.float64)).astype(np.float32)

    def _note_breaker(self, end: int) -> None:
        """Remember the breaker that starts latest, and of those the longest, when one ends at ``end``."""
        for sequence in self._breakers.get(int(self._tokens[end]), ()):
            start = end + 1 - len(sequence)
            if start >= max(self._breaker_start, 0) and tuple(self._tokens[start : end + 1]) == sequence:
                self._breaker_start, self._breaker_end = start, end


def _breakers_by_last(params: SamplingParams) -> dict[int, list[tuple[int, ...]]]:
    sequences = {(token,) for token in params.dry_breaker_ids} | set(params.dry_breaker_sequences)
    by_last: dict[int, list[tuple[int, ...]]] = {}
    for sequence in sequences:
        if sequence:
            by_last.setdefault(sequence[-1], []).append(sequence)
    return by_last


def _suffix_runs(tokens: Sequence[int]) -> list[int]:
    """For each position but the last: the length of the longest common suffix of ``tokens[:j + 1]`` and ``tokens``.

    The Z function of the reversed tokens, in linear time.
    """
    reverse = tokens[::-1]
    length = len(reverse)
    z = [0] * length
    left = right = 0
    for i in range(1, length):
        run = min(right - i, z[i - left]) if i < right else 0
        while i + run < length and reverse[run] == reverse[i + run]:
            run += 1
        if i + run > right:
            left, right = i, i + run
        z[i] = run
    return z[:0:-1]

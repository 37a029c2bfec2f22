"""Finding the spellings of control tokens in text: one pass, longest match at each position."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator


class ControlTextScanner:
    """Finds occurrences of a fixed set of spellings.

    Candidate positions come from a character-class search over first characters; each is then tried against the distinct
    lengths, so the cost does not grow with the number of spellings (vocabularies carry up to a thousand).
    """

    def __init__(self, spellings: Iterable[str]) -> None:
        self._spellings = frozenset(spelling for spelling in spellings if spelling)
        self._lengths = sorted({len(spelling) for spelling in self._spellings}, reverse=True)
        first_characters = "".join(sorted({re.escape(spelling[0]) for spelling in self._spellings}))
        self._candidate = re.compile(f"[{first_characters}]") if first_characters else None

    def starts(self, text: str) -> Iterator[int]:
        """Every position where a spelling starts, overlapping ones included."""
        if self._candidate is None:
            return
        for candidate in self._candidate.finditer(text):
            if self._at(text, candidate.start()) is not None:
                yield candidate.start()

    def spans(self, text: str) -> Iterator[tuple[int, str]]:
        """Leftmost-longest, non-overlapping ``(position, spelling)``."""
        if self._candidate is None:
            return
        position = 0
        while (candidate := self._candidate.search(text, position)) is not None:
            spelling = self._at(text, candidate.start())
            if spelling is None:
                position = candidate.start() + 1
            else:
                yield candidate.start(), spelling
                position = candidate.start() + len(spelling)

    def _at(self, text: str, position: int) -> str | None:
        for length in self._lengths:
            piece = text[position : position + length]
            if piece in self._spellings:
                return piece
        return None

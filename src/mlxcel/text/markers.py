"""Finding delimiters in text that arrives in pieces of any size."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable


class MarkerScanner:
    """Looks for a fixed set of delimiters and knows which tail of a text could still become one.

    Where two delimiters start at the same place, the longer one wins.
    """

    def __init__(self, markers: Iterable[str]) -> None:
        self._markers = tuple(sorted({marker for marker in markers if marker}, key=len, reverse=True))
        self._longest = len(self._markers[0]) if self._markers else 0
        self._first_chars = frozenset(marker[0] for marker in self._markers)
        # Only where one delimiter is the head of another does a match say too little. In sorted order those are neighbours.
        ordered = sorted(self._markers)
        self._nested = any(later.startswith(earlier) for earlier, later in itertools.pairwise(ordered))
        self._contained = any(inner in outer[1:] for outer in self._markers for inner in self._markers if inner != outer)
        self._pattern = re.compile("|".join(map(re.escape, self._markers))) if self._markers else None

    @property
    def markers(self) -> tuple[str, ...]:
        return self._markers

    def may_start_in(self, text: str) -> bool:
        """False when no character of ``text`` begins a delimiter: the cheap test that plain text passes."""
        return any(char in text for char in self._first_chars)

    def find(self, text: str, start: int = 0, *, final: bool = False) -> tuple[int, str] | None:
        """The first delimiter at or after ``start`` as ``(offset, delimiter)``.

        None also while the end of ``text`` could still turn it into a longer delimiter, or one that starts earlier and
        contains it, unless ``final``.
        """
        match = self._pattern.search(text, start) if self._pattern is not None else None
        if match is None:
            return None
        if self._nested and not final and self._is_head(text[match.start() : match.start() + self._longest]):
            return None
        if self._contained and not final and 0 < self.held_chars(text, start) > len(text) - match.start():
            return None
        return match.start(), match.group()

    def held_chars(self, text: str, start: int = 0) -> int:
        """Length of the longest tail of ``text[start:]`` that is a proper head of a delimiter (0 when there is none)."""
        for offset in range(max(start, len(text) - self._longest + 1), len(text)):
            if text[offset] in self._first_chars and self._is_head(text[offset:]):
                return len(text) - offset
        return 0

    def _is_head(self, text: str) -> bool:
        return any(len(marker) > len(text) and marker.startswith(text) for marker in self._markers)

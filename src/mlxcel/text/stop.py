"""Stop strings over a stream of text."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Node:
    """A state of the automaton: the longest suffix of the text so far that begins some stop string."""

    depth: int
    next: dict[str, int] = field(default_factory=dict)
    fallback: int = 0
    ends: int | None = None  # index of the first listed stop string that is complete here


class StopMatcher:
    """Finds the first stop string to be completed, however the text is cut into pieces.

    An Aho-Corasick automaton (Aho and Corasick 1975) reads each character once, so the cost is linear in the text and does
    not grow with the number of stop strings. Only a tail that may still become a stop string is held back. When several
    stop strings are completed by the same character, the one listed first wins.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._nodes = [_Node(depth=0)]
        for index, stop in enumerate(self._stops):
            self._insert(stop, index)
        self._link()
        self._state = 0
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string found, once there is one."""
        return self._matched

    def push(self, text: str) -> tuple[str, str | None]:
        """Take more text.

        Returns:
            The text that is safe to show, and the stop string that was found. The stop string itself and all that follows
            are never shown; after a match every call returns ``("", match)``.
        """
        if self._matched is not None:
            return "", self._matched
        if not self._stops:
            return text, None
        state = self._state
        held_length = len(self._held)
        for offset, character in enumerate(text):
            state = self._advance(state, character)
            ends = self._nodes[state].ends
            if ends is not None:
                self._matched = self._stops[ends]
                read = self._held + text[: offset + 1]
                self._held = ""
                return read[: held_length + offset + 1 - len(self._matched)], self._matched
        self._state = state
        read = self._held + text
        safe_length = len(read) - self._nodes[state].depth
        self._held = read[safe_length:]
        return read[:safe_length], None

    def flush(self) -> str:
        """The end of the text: what was held back is no stop string after all."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _advance(self, state: int, character: str) -> int:
        nodes = self._nodes
        while (following := nodes[state].next.get(character)) is None:
            if state == 0:
                return 0
            state = nodes[state].fallback
        return following

    def _insert(self, stop: str, index: int) -> None:
        state = 0
        for character in stop:
            following = self._nodes[state].next.get(character)
            if following is None:
                following = len(self._nodes)
                self._nodes.append(_Node(depth=self._nodes[state].depth + 1))
                self._nodes[state].next[character] = following
            state = following
        if self._nodes[state].ends is None:
            self._nodes[state].ends = index

    def _link(self) -> None:
        """Breadth first: each state falls back to the longest proper suffix that is a state, and inherits its match."""
        queue = deque(self._nodes[0].next.values())
        while queue:
            state = queue.popleft()
            node = self._nodes[state]
            for character, following in node.next.items():
                self._nodes[following].fallback = self._advance(node.fallback, character)
                queue.append(following)
            inherited = self._nodes[node.fallback].ends
            if inherited is not None and (node.ends is None or inherited < node.ends):
                node.ends = inherited

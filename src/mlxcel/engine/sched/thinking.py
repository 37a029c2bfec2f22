"""The thinking block of one row: counts its tokens, closes it at the budget, and says when a constraint applies."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from mlxcel.core.work import ThinkingPlan


class _Phase(Enum):
    OUTSIDE = "outside"
    INSIDE = "inside"
    DONE = "done"


class ThinkingTracker:
    """State machine over the generated tokens: outside -> inside -> done.

    A model that has not opened its block yet may do so at any time; a constrained row is made to open it at once, because
    the constraint would not let the marker pass. With a budget of 0 a constrained row goes without a block.
    """

    def __init__(self, plan: ThinkingPlan, *, constrained: bool) -> None:
        self.reasoning_tokens = 0  # tokens after the opening marker, the closing marker not counted
        self._plan = plan
        self._budget_tokens = plan.budget_tokens
        self._constrained = constrained
        self._phase = _Phase.INSIDE if plan.starts_inside else _Phase.OUTSIDE
        self._open_matched = 0
        self._close_matched = 0
        if not plan.starts_inside and constrained and (plan.budget_tokens == 0 or not plan.open_ids):
            self._phase = _Phase.DONE

    @property
    def constraint_applies(self) -> bool:
        """True when the next token is subject to the row's constraint."""
        return self._phase is _Phase.DONE

    @property
    def accepts_drafts(self) -> bool:
        """True when several tokens may be taken in one step without a decision of this tracker in between."""
        if self._constrained or self._budget_tokens >= 0 or self._plan.can_be_ended:
            return self._phase is _Phase.DONE
        return True

    def forced_id(self) -> int | None:
        """The token that has to come next, or None for a free draw."""
        plan = self._plan
        if self._phase is _Phase.OUTSIDE and self._constrained:
            return plan.open_ids[self._open_matched]
        if self._phase is _Phase.INSIDE and 0 <= self._budget_tokens <= self.reasoning_tokens and plan.close_ids:
            return plan.close_ids[self._close_matched]
        return None

    def end(self) -> bool:
        """Close the block at once, or as soon as the model opens one; False when the plan does not allow it."""
        if self._plan.can_be_ended:
            self._budget_tokens = 0
        return self._plan.can_be_ended

    def push(self, token_id: int) -> None:
        """Take the token that was generated."""
        if self._phase is _Phase.OUTSIDE:
            self._open_matched = _advance(self._plan.open_ids, self._open_matched, token_id)
            if self._open_matched == len(self._plan.open_ids) > 0:
                self._phase, self._close_matched = _Phase.INSIDE, 0
        elif self._phase is _Phase.INSIDE:
            self.reasoning_tokens += 1
            self._close_matched = _advance(self._plan.close_ids, self._close_matched, token_id)
            if self._close_matched == len(self._plan.close_ids) > 0:
                self.reasoning_tokens -= len(self._plan.close_ids)
                self._leave()

    def _leave(self) -> None:
        self._open_matched = 0
        self._phase = _Phase.DONE if self._constrained else _Phase.OUTSIDE


def _advance(marker: Sequence[int], matched: int, token_id: int) -> int:
    """Length of the longest prefix of ``marker`` that the tokens end with, given it was ``matched`` before ``token_id``."""
    while True:
        if matched < len(marker) and marker[matched] == token_id:
            return matched + 1
        if matched == 0:
            return 0
        matched = _border(marker, matched)


def _border(marker: Sequence[int], length: int) -> int:
    """Length of the longest proper prefix of ``marker[:length]`` that is also its suffix."""
    for size in range(length - 1, 0, -1):
        if tuple(marker[:size]) == tuple(marker[length - size : length]):
            return size
    return 0

"""One work inside the engine: its tokens, how far its state is computed, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from mlxcel.core.events import FinishReason
from mlxcel.core.jobs import Priority
from mlxcel.core.usage import Timings, Usage
from mlxcel.core.work import GenerateWork, RowSpec
from mlxcel.engine.draft import DraftPace, DraftWish
from mlxcel.engine.loop_detection import LoopDetector
from mlxcel.engine.sched.thinking import ThinkingTracker


class RowState(Enum):
    WAITING = "waiting"  # in the queue; holds nothing
    PREFILL = "prefill"  # open; more than the newest token is still to be computed
    DECODE = "decode"  # open; only the newest token is to be computed
    ENDED = "ended"


@dataclass(slots=True)
class ReuseNotes:
    """What the ledger remembers about one row.

    Attributes:
        digests: chain digests of the first full blocks of the row's tokens, as far as they were needed.
        looked_up: the row was counted as a lookup.
        publishing: blocks are stored while the prompt is being computed.
        stored_blocks: leading blocks that are stored.
        added: the row has stored something new.
        waits_for: digest of the last block that another row is computing for this one.
        snapshot: handle of the snapshot to restore once the row is open.
    """

    digests: list[bytes] = field(default_factory=list)
    looked_up: bool = False
    publishing: bool = False
    stored_blocks: int = 0
    added: bool = False
    waits_for: bytes | None = None
    snapshot: int | None = None


class Row:
    """State of one work. The scheduler's parts move it; nothing else holds on to it.

    Attributes:
        order: place in the queue (key, sequence number), smaller first; kept over a preemption.
        slot: index of the slot while open, else -1.
        tokens: the context: prompt and generated tokens, less what context shift dropped.
        head_tokens: of ``tokens``, those that came with the prompt.
        computed_tokens: of ``tokens``, those whose state the model holds.
        prompt_tokens: length of the client's prompt.
        cached_tokens: of these, taken from the prefix cache when the row first opened.
        generated_tokens: tokens produced, an end-of-generation token included.
        blocks: KV block table, in order.
        fresh_blocks: its tail that the runner has not been told of yet.
        room_tokens: positions there is room for.
        reuse: the ledger's notes on this row.
        truncated: the window cut something.
        pace: of its drafts; None when nothing is drafted.
    """

    __slots__ = (
        "admitted_s",
        "blocks",
        "cached_tokens",
        "computed_tokens",
        "first_token_s",
        "fresh_blocks",
        "generated_tokens",
        "head_tokens",
        "loops",
        "order",
        "pace",
        "prompt_tokens",
        "reuse",
        "room_tokens",
        "row_id",
        "slot",
        "state",
        "submitted_s",
        "thinking",
        "tokens",
        "truncated",
        "work",
    )

    def __init__(self, work: GenerateWork, row_id: int, order: tuple[float, int], submitted_s: float) -> None:
        self.work = work
        self.row_id = row_id
        self.order = order
        self.state = RowState.WAITING
        self.slot = -1
        self.tokens = list(work.prompt_ids)
        self.prompt_tokens = self.head_tokens = len(work.prompt_ids)
        self.computed_tokens = 0
        self.cached_tokens = 0
        self.generated_tokens = 0
        self.blocks: list[int] = []
        self.fresh_blocks: tuple[int, ...] = ()
        self.room_tokens = 0
        self.reuse = ReuseNotes()
        self.truncated = False
        self.pace: DraftPace | None = None
        self.loops = LoopDetector(work.loop) if work.loop is not None and work.loop.enabled else None
        self.thinking: ThinkingTracker | None = None
        if work.thinking is not None:
            self.thinking = ThinkingTracker(work.thinking, constrained=work.constraint is not None)
        self.submitted_s = submitted_s
        self.admitted_s = -1.0
        self.first_token_s = -1.0

    @property
    def strength(self) -> tuple[Priority, tuple[float, int]]:
        """Total order of running rows; the greatest gives way first when blocks run out."""
        return self.work.priority, self.order

    @property
    def remaining_tokens(self) -> int:
        """Tokens to compute before the next draw."""
        return len(self.tokens) - self.computed_tokens

    @property
    def constrained(self) -> bool:
        """True when the next draw is subject to the work's constraint."""
        return self.work.constraint is not None and (self.thinking is None or self.thinking.constraint_applies)

    def spec(self) -> RowSpec:
        """How the runner is asked to open this row as it is now."""
        known = len(self.blocks) - len(self.fresh_blocks)
        return RowSpec(
            row_id=self.row_id,
            prompt_ids=tuple(self.tokens[: self.head_tokens]),
            sampling=self.work.sampling,
            constraint=self.work.constraint,
            adapters=self.work.adapters,
            blocks=tuple(self.blocks[:known]),
            generated_ids=tuple(self.tokens[self.head_tokens :]),
        )

    def take(self, token_id: int, *, completes: bool) -> FinishReason | None:
        """Append a generated token; returns why the row ends with it, or None. The window is the caller's matter.

        Args:
            completes: the token completed the work's grammar.
        """
        work = self.work
        self.tokens.append(token_id)
        self.generated_tokens += 1
        if token_id in work.stop_ids:
            return FinishReason.EOS
        if self.thinking is not None:
            self.thinking.push(token_id)
        if completes:
            return FinishReason.EOS
        if self.generated_tokens >= work.max_tokens:
            return FinishReason.LENGTH
        if self.loops is not None and self.loops.push(token_id):
            return FinishReason.LOOP
        return None

    def draft_wish(self, context_tokens: int) -> DraftWish | None:
        """What to ask a drafter for: no more than the work and its window can take; nothing where a token is not free."""
        if self.pace is None or (self.thinking is not None and not self.thinking.accepts_drafts):
            return None
        work = self.work
        room_tokens = min(work.max_tokens - self.generated_tokens, context_tokens - len(self.tokens)) - 1
        limit = min(self.pace.next_tokens(), room_tokens)
        return DraftWish(self.row_id, self.tokens, limit, work.stop_ids) if limit > 0 else None

    def forget_state(self) -> None:
        """The runner and the ledger no longer hold anything of this row; it waits to be computed anew."""
        self.state = RowState.WAITING
        self.computed_tokens = 0
        self.room_tokens = 0

    def shift_context(self) -> None:
        """Drop the older half of what follows the kept head. The positions change, so the state has to be computed anew."""
        keep_tokens = self.work.keep_tokens if self.work.keep_tokens >= 0 else self.prompt_tokens
        keep_tokens = min(keep_tokens, self.head_tokens, len(self.tokens) // 2)
        dropped_tokens = max(1, (len(self.tokens) - keep_tokens) // 2)
        self.head_tokens = keep_tokens + max(0, self.head_tokens - keep_tokens - dropped_tokens)
        del self.tokens[keep_tokens : keep_tokens + dropped_tokens]
        self.reuse.digests.clear()
        self.truncated = True

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.generated_tokens,
            reasoning_tokens=self.thinking.reasoning_tokens if self.thinking is not None else 0,
        )

    def timings(self, now_s: float) -> Timings:
        if self.admitted_s < 0:
            return Timings(queue_s=now_s - self.submitted_s)
        queue_s = self.admitted_s - self.submitted_s
        if self.first_token_s < 0:
            return Timings(queue_s, now_s - self.admitted_s)
        draft = self.pace.stats() if self.pace is not None else None
        return Timings(queue_s, self.first_token_s - self.admitted_s, now_s - self.first_token_s, draft)

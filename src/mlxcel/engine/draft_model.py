"""A draft model: a smaller one with the same vocabulary runs ahead of the served one.

It proposes its most probable tokens. Verification keeps one of probability p with probability p, which is exact for any
proposal that does not depend on the draw (Leviathan et al. 2023, arXiv:2211.17192).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mlxcel.core.errors import StartupError
from mlxcel.core.ports import ModelRunner
from mlxcel.core.sampling import SamplingParams
from mlxcel.core.work import RowResult, RowSpec, RowStep, StepPlan
from mlxcel.engine.draft import DraftWish

log = logging.getLogger(__name__)

_GREEDY = SamplingParams(temperature=0.0)
_CATCH_UP_TOKENS = 512  # context that one step may take in, over all rows


@dataclass(slots=True)
class _Row:
    """What the draft model holds of one context.

    Attributes:
        blocks: KV blocks of its own pool, in order.
        known_blocks: of these, those that the runner was told of.
        computed_tokens: of the context, those whose state is there.
        guessed_ids: proposals whose state follows them.
        failed: nothing is proposed for this row any more.
    """

    blocks: list[int] = field(default_factory=list)
    known_blocks: int = 0
    computed_tokens: int = 0
    guessed_ids: list[int] = field(default_factory=list)
    failed: bool = False

    def keep(self, tokens: Sequence[int]) -> None:
        """Keep the state of the guesses that came true; the newest token always runs again, for its logits."""
        for token_id in self.guessed_ids:
            if self.computed_tokens >= len(tokens) - 1 or tokens[self.computed_tokens] != token_id:
                break
            self.computed_tokens += 1
        self.guessed_ids.clear()


class ModelDrafter:
    """A :class:`~mlxcel.engine.draft.Drafter` over any runner with paged KV: a step back is a smaller position.

    Args:
        model: the draft model; closed with this object.
        vocab_size: of the served model; ids beyond it are never proposed.

    Raises:
        StartupError: the draft model's state cannot be taken back.
    """

    kind = "draft-model"
    max_tokens = 4
    credit_steps = 64

    def __init__(self, model: ModelRunner, vocab_size: int) -> None:
        if model.info.state != "paged":
            raise StartupError("--draft-model: a model with recurrent state cannot draft; choose one with plain attention")
        self._model = model
        self._vocab_size = vocab_size
        self._free_blocks = list(range(model.info.block_count - 1, -1, -1))
        self._rows: dict[int, _Row] = {}
        self._broken = False

    def propose(self, wishes: Sequence[DraftWish]) -> list[tuple[int, ...]]:
        if self._broken:
            return [()] * len(wishes)
        proposals: dict[int, list[int]] = {}
        try:
            self._propose(wishes, proposals)
        except Exception:
            log.exception("the draft model failed; the server goes on without it")
            self._broken = True
            for row_id in tuple(self._rows):
                self.forget(row_id)
        return [tuple(proposals.get(wish.row_id, ())) for wish in wishes]

    def forget(self, row_id: int) -> None:
        row = self._rows.pop(row_id, None)
        if row is not None:
            self._free(row_id, row)

    def close(self) -> None:
        self._rows.clear()
        self._model.shutdown()

    def _propose(self, wishes: Sequence[DraftWish], proposals: dict[int, list[int]]) -> None:
        """Take in what is new of every context, then guess one token after another for all rows that are up to date."""
        asking: dict[int, DraftWish] = {}
        steps: list[RowStep] = []
        budget_tokens = _CATCH_UP_TOKENS
        for wish in wishes:
            row = self._row_for(wish)
            if row is None or budget_tokens <= 0:
                continue
            count = min(len(wish.tokens) - row.computed_tokens, budget_tokens)
            budget_tokens -= count
            complete = row.computed_tokens + count == len(wish.tokens)
            fed = tuple(wish.tokens[row.computed_tokens : row.computed_tokens + count])
            steps.append(self._step(wish.row_id, row, fed, row.computed_tokens, sample=complete))
            row.computed_tokens += count
            if complete:
                asking[wish.row_id] = wish
        while steps:
            steps = self._guess(steps, asking, proposals)

    def _guess(
        self, steps: list[RowStep], asking: Mapping[int, DraftWish], proposals: dict[int, list[int]]
    ) -> list[RowStep]:
        """Run one step; returns the next one, of the rows that want more."""
        following: list[RowStep] = []
        for result in self._model.run(StepPlan(tuple(steps))).rows:
            wish, row = asking.get(result.row_id), self._rows[result.row_id]
            if result.error is not None:
                self._give_up(result, row)
            elif wish is not None:
                token_id = result.token_ids[0]
                if token_id in wish.stop_ids or token_id >= self._vocab_size:
                    continue
                guessed = proposals.setdefault(result.row_id, [])
                guessed.append(token_id)
                if len(guessed) < wish.limit:
                    position = row.computed_tokens + len(row.guessed_ids)
                    row.guessed_ids.append(token_id)
                    following.append(self._step(result.row_id, row, (token_id,), position))
        return following

    def _step(self, row_id: int, row: _Row, token_ids: tuple[int, ...], position: int, *, sample: bool = True) -> RowStep:
        fresh_blocks = tuple(row.blocks[row.known_blocks :])
        row.known_blocks = len(row.blocks)
        return RowStep(row_id, token_ids, position, fresh_blocks, sample)

    def _row_for(self, wish: DraftWish) -> _Row | None:
        """The row, with blocks for the whole context and the guesses; None when it cannot be served."""
        row = self._rows.get(wish.row_id)
        if row is None:
            try:
                self._model.open(RowSpec(wish.row_id, (), _GREEDY))
            except MemoryError:
                return None
            row = self._rows[wish.row_id] = _Row()
        info = self._model.info
        tokens = len(wish.tokens) + wish.limit
        missing_blocks = -(-tokens // info.block_tokens) - len(row.blocks)
        if row.failed or tokens > info.context_tokens or missing_blocks > len(self._free_blocks):
            return None
        row.blocks += [self._free_blocks.pop() for _ in range(missing_blocks)]
        row.keep(wish.tokens)
        return row

    def _give_up(self, result: RowResult, row: _Row) -> None:
        log.error("the draft model cannot go on with row %d", result.row_id, exc_info=result.error)
        row.failed = True

    def _free(self, row_id: int, row: _Row) -> None:
        self._model.close(row_id)
        self._free_blocks += row.blocks

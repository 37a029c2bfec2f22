"""Builds the plan of one step: every decoding row, and as many prompt tokens beside them as the budget allows."""

from __future__ import annotations

from collections.abc import Callable

from mlxcel.core.errors import GenerationFailed, MlxcelError
from mlxcel.core.work import RowStep, StepPlan
from mlxcel.engine.config import EngineConfig
from mlxcel.engine.draft import DraftBalance, Drafter
from mlxcel.engine.sched.admission import Admission
from mlxcel.engine.sched.budget import StepCosts
from mlxcel.engine.sched.ledger import StateLedger
from mlxcel.engine.sched.policy import grant_tokens, split_prefill
from mlxcel.engine.sched.row import Row, RowState
from mlxcel.engine.sched.settle import StepSummary
from mlxcel.engine.sched.table import RowTable


class Planner:
    """``fail`` ends a row with an error."""

    def __init__(
        self, table: RowTable, admission: Admission, ledger: StateLedger, config: EngineConfig, context_tokens: int,
        fail: Callable[[Row, MlxcelError], None], drafter: Drafter | None, clock: Callable[[], float],
    ) -> None:
        self._table = table
        self._admission = admission
        self._ledger = ledger
        self._costs = StepCosts(config.prefill_grant_interval)
        self._drafter = drafter
        self._balance = DraftBalance(drafter.credit_steps if drafter is not None else 0)
        self._draft_s = 0.0  # spent on proposals for the step that was planned last
        self._config = config
        self._context_tokens = context_tokens
        self._fail = fail
        self._clock = clock
        self._grant_tokens = grant_tokens(config.prefill_chunk_tokens, config.prefill_grant_interval)

    def plan(self) -> StepPlan:
        """Decide the next step. An empty plan means that nothing can run."""
        running = self._table.running
        waiting = [row for row in running if row.state is RowState.PREFILL]
        decode_rows = len(running) - len(waiting)
        drafts = not waiting and decode_rows > 0 and self._may_draft(decode_rows)
        steps = self._decode_steps(drafts=drafts)
        if waiting and not (steps and self._costs.wants_plain_step(len(steps))):
            waiting = [row for row in running if row.state is RowState.PREFILL]  # some may have given way
            waiting.sort(key=lambda row: row.order)
            steps += self._prefill_steps(waiting, decode_rows=len(steps))
        return StepPlan(tuple(steps))

    def observe(self, done: StepSummary, step_s: float) -> None:
        """Learn from the measured time of the step that was planned last."""
        plain_step_s = self._costs.plain_step_s(done.decode_rows)
        if done.decode_rows and not done.prefill_tokens and plain_step_s:
            self._balance.observe(
                decode_rows=done.decode_rows, accepted_tokens=done.accepted_tokens, drafted=done.drafted_tokens > 0,
                step_s=step_s, plain_step_s=plain_step_s, draft_s=self._draft_s,
            )
        self._draft_s = 0.0
        self._costs.observe(
            decode_rows=done.decode_rows, prefill_tokens=done.prefill_tokens, drafted=done.drafted_tokens > 0, step_s=step_s
        )

    def drafting_pays(self, decode_rows: int) -> bool:
        """Whether drafting is worth its time with so many rows, as far as was measured. Safe to call from any thread."""
        return self._drafter is not None and self._balance.allows(decode_rows)

    def _may_draft(self, decode_rows: int) -> bool:
        return self.drafting_pays(decode_rows) and not self._costs.wants_plain_step(decode_rows)

    def _decode_steps(self, *, drafts: bool) -> list[RowStep]:
        rows: list[Row] = []
        running = self._table.running
        place = 0
        while place < len(running):  # weaker rows may leave from the end of the list meanwhile
            row = running[place]
            if row.state is RowState.DECODE:
                position = row.computed_tokens
                if position >= row.room_tokens and not self._make_room(row, position + 1):
                    continue  # the row itself has left the list
                rows.append(row)
            place += 1
        proposals = self._proposals(rows) if drafts else {}
        return [self._step(row, 1, proposals.get(row.row_id, ())) for row in rows]

    def _proposals(self, rows: list[Row]) -> dict[int, tuple[int, ...]]:
        """Drafts by row id, for the rows that get some and have room for them."""
        if self._drafter is None:
            return {}
        started_s = self._clock()
        wishes = [wish for row in rows if (wish := row.draft_wish(self._context_tokens)) is not None]
        drafts = self._drafter.propose(wishes) if wishes else []
        self._draft_s = self._clock() - started_s
        return {
            wish.row_id: draft_ids
            for wish, draft_ids in zip(wishes, drafts, strict=True)
            if draft_ids and self._ledger.grow(self._table[wish.row_id], len(wish.tokens) + len(draft_ids))
        }

    def _make_room(self, row: Row, tokens: int) -> bool:
        """Grow a row's table, at the cost of the weakest rows if need be; False when the row itself had to give way."""
        running = self._table.running
        while not self._ledger.grow(row, tokens):
            victim = running[-1]
            if victim is not row:
                self._admission.preempt(victim)
            elif len(running) > 1:
                self._admission.preempt(row)
                return False
            else:
                self._fail(row, GenerationFailed("KV cache budget exhausted"))
                return False
        return True

    def _prefill_steps(self, waiting: list[Row], *, decode_rows: int) -> list[RowStep]:
        config = self._config
        chunk = config.prefill_chunk_tokens or sum(row.remaining_tokens for row in waiting)
        total, head = chunk, chunk
        if decode_rows:
            head = min(chunk, self._grant_tokens)
            total = min(chunk, max(head, self._costs.shared_tokens(decode_rows)))
        elif len(waiting) > 1:
            head = chunk // 2
            if config.max_batch_prefill_tokens:
                total = min(chunk, config.max_batch_prefill_tokens)
        shares = split_prefill(
            [self._ledger.next_stop(row) - row.computed_tokens for row in waiting],
            total_tokens=total, head_tokens=head, max_prompts=config.max_batch_prefill,
        )
        return [self._step(row, tokens) for row, tokens in zip(waiting, shares, strict=True) if tokens]

    def _step(self, row: Row, count: int, draft_ids: tuple[int, ...] = ()) -> RowStep:
        position = row.computed_tokens
        token_ids = tuple(row.tokens[position : position + count])
        fresh_blocks = row.fresh_blocks
        row.fresh_blocks = ()
        if position + count < len(row.tokens):
            return RowStep(row.row_id, token_ids, position, fresh_blocks, sample=False)
        forced_id = row.thinking.forced_id() if row.thinking is not None else None
        return RowStep(row.row_id, token_ids, position, fresh_blocks, True, forced_id, row.constrained, draft_ids)

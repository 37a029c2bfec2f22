"""Takes the results of a step into the rows and says what happened, as events."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from mlxcel.core.errors import GenerationFailed, MlxcelError
from mlxcel.core.events import EngineEvent, Failed, Finished, FinishReason, PrefillDone, Tokens
from mlxcel.core.work import RowResult, RowStep, StepPlan, StepResult
from mlxcel.engine.sched.admission import Admission
from mlxcel.engine.sched.ledger import StateLedger
from mlxcel.engine.sched.row import Row, RowState
from mlxcel.engine.sched.table import RowTable
from mlxcel.engine.stats import EngineCounters

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StepSummary:
    """What a step did, for the measurements. ``accepted_tokens``: drafts that were right."""

    decode_rows: int = 0
    prefill_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class Settler:
    """Appends events to ``events``, the engine's outbox."""

    def __init__(
        self, table: RowTable, admission: Admission, ledger: StateLedger, counters: EngineCounters,
        events: list[EngineEvent], *, context_tokens: int, context_shift: bool,
    ) -> None:
        self._table = table
        self._admission = admission
        self._ledger = ledger
        self._counters = counters
        self._events = events
        self._context_tokens = context_tokens
        self._context_shift = context_shift

    def settle(self, plan: StepPlan, result: StepResult, now_s: float) -> StepSummary:
        """Take the result of ``plan``, which has just run."""
        done = StepSummary()
        prompts = 0
        for step, outcome in zip(plan.rows, result.rows, strict=True):
            row = self._table[step.row_id]
            row.computed_tokens = step.position + len(step.token_ids)
            if row.state is RowState.DECODE:
                done.decode_rows += 1
            else:
                prompts += 1
                done.prefill_tokens += len(step.token_ids)
                if outcome.error is None:
                    self._ledger.computed(row)
            if step.draft_ids:
                self._note_drafts(row, step, outcome, done)
            if step.sample and outcome.token_ids:
                self._take(row, step, outcome, now_s)
            if row.state not in (RowState.PREFILL, RowState.DECODE):
                continue  # it ended, or gave up its slot, with the tokens before any error
            if outcome.error is not None:
                self._fail(row, outcome.error)
            elif step.sample and not outcome.token_ids:
                self._fail(row, RuntimeError("the runner sampled no token"))
        counters = self._counters
        counters.prefill_tokens += done.prefill_tokens
        counters.prefill_chunks += prompts
        counters.decode_steps += done.decode_rows > 0
        counters.mixed_steps += done.decode_rows > 0 and prompts > 0
        return done

    def finish(self, row: Row, reason: FinishReason, now_s: float) -> None:
        """End a row, open or waiting, and report it."""
        self._close(row, sound=True)
        self._counters.drafted_works += row.pace is not None and row.pace.rounds > 0
        self._events.append(Finished(row.work.id, reason, row.usage(), row.timings(now_s), row.truncated))

    def fail(self, row: Row, error: MlxcelError) -> None:
        """End a row, open or waiting, with an error."""
        self._close(row, sound=False)
        self._events.append(Failed(row.work.id, error))

    def _close(self, row: Row, *, sound: bool) -> None:
        if row.state is RowState.WAITING:
            self._admission.withdraw(row)
        else:
            self._table.end(row, sound=sound)
        self._counters.sequences_completed += row.admitted_s >= 0

    def _fail(self, row: Row, error: Exception) -> None:
        if not isinstance(error, MlxcelError):
            log.error("row %d failed", row.row_id, exc_info=error)
            error = GenerationFailed("the generation of this request failed inside the engine")
        self.fail(row, error)

    def _note_drafts(self, row: Row, step: RowStep, outcome: RowResult, done: StepSummary) -> None:
        accepted_tokens = max(0, len(outcome.token_ids) - 1)
        done.drafted_tokens += len(step.draft_ids)
        done.accepted_tokens += accepted_tokens
        self._counters.drafted_tokens += len(step.draft_ids)
        self._counters.accepted_tokens += accepted_tokens
        if row.pace is not None:
            row.pace.settle(len(step.draft_ids), accepted_tokens)

    def _take(self, row: Row, step: RowStep, outcome: RowResult, now_s: float) -> None:
        if row.state is RowState.PREFILL:
            self._end_prefill(row, now_s)
        reason: FinishReason | None = None
        taken = 0
        constraint = row.work.constraint
        # The constraint has seen the whole burst, and only the last token of one can complete it.
        completes = step.constrained and constraint is not None and constraint.is_finished
        for token_id in outcome.token_ids:
            taken += 1
            reason = row.take(token_id, completes=completes and taken == len(outcome.token_ids))
            if reason is not None:
                break
        row.computed_tokens += min(taken, len(outcome.token_ids) - 1)  # accepted drafts have their state already
        self._counters.decode_tokens += taken
        shown = taken - 1 if reason is FinishReason.EOS and row.tokens[-1] in row.work.stop_ids else taken
        if shown == 1 and len(outcome.token_ids) == 1:
            self._events.append(Tokens(row.work.id, outcome.token_ids, outcome.logprobs))
        elif shown:
            self._events.append(Tokens(row.work.id, outcome.token_ids[:shown], outcome.logprobs[:shown]))
        if reason is not None:
            self.finish(row, reason, now_s)
        elif len(row.tokens) >= self._context_tokens:
            self._window_full(row, now_s)

    def _end_prefill(self, row: Row, now_s: float) -> None:
        row.state = RowState.DECODE
        if row.first_token_s < 0:
            row.first_token_s = now_s
            self._events.append(
                PrefillDone(
                    row.work.id, row.prompt_tokens, row.cached_tokens,
                    queue_s=row.admitted_s - row.submitted_s, prefill_s=now_s - row.admitted_s,
                )
            )

    def _window_full(self, row: Row, now_s: float) -> None:
        if not self._context_shift:
            row.truncated = True
            self.finish(row, FinishReason.LENGTH, now_s)
            return
        self._admission.suspend(row)
        row.shift_context()

"""The engine proper: one causal model, many works. A step is three calls: schedule, run, settle."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence

from mlxcel.core.errors import ContextOverflow, GenerationFailed, InvalidRequest, MlxcelError, StartupError
from mlxcel.core.events import EngineEvent, Failed, Finished, FinishReason
from mlxcel.core.ports import ModelInfo, ModelRunner
from mlxcel.core.work import GenerateWork, SlotRecord, StepPlan, StepResult
from mlxcel.engine.config import EngineConfig
from mlxcel.engine.draft import Drafter, DraftPace
from mlxcel.engine.draft_model import ModelDrafter
from mlxcel.engine.prompt_lookup import PromptLookup
from mlxcel.engine.sched.admission import Admission
from mlxcel.engine.sched.ledger import StateLedger
from mlxcel.engine.sched.paged import PagedLedger
from mlxcel.engine.sched.planner import Planner
from mlxcel.engine.sched.queue import RowQueue, queue_key
from mlxcel.engine.sched.row import Row, RowState
from mlxcel.engine.sched.settle import Settler
from mlxcel.engine.sched.snapshot import SnapshotLedger
from mlxcel.engine.sched.table import RowTable
from mlxcel.engine.stats import Drafting, EngineCounters, EngineStats, SlotState, SlotStatus, make_stats
from mlxcel.prefix_cache.stats import CacheStats

log = logging.getLogger(__name__)

_MAX_DEVICE_FAULTS = 3  # consecutive steps that may fail before the engine gives up


class GenerationRunner:
    """A :class:`~mlxcel.core.ports.Runner` that batches works over a :class:`~mlxcel.core.ports.ModelRunner`.

    Called by the owner thread, except for :meth:`stats`, which any thread may call.

    Args:
        draft_model: proposes tokens for ``model``; closed with it.
        counters: sums to continue; None starts at 0.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        model: ModelRunner,
        config: EngineConfig,
        *,
        draft_model: ModelRunner | None = None,
        counters: EngineCounters | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.counters = counters if counters is not None else EngineCounters()
        self.context_tokens = slot_context_tokens(model.info, config)
        self._config = config
        self._clock = clock
        self._events: list[EngineEvent] = []
        self._row_ids = itertools.count()
        self._rows: dict[str, Row] = {}
        self._batch_rows = 0
        self._faults_in_a_row = 0
        self._queue = RowQueue()
        self._ledger = self._make_ledger()
        self._drafter = _make_drafter(model, draft_model, config)
        self._table = RowTable(model, self._ledger, min(config.max_rows, model.info.max_rows), self._drafter)
        self._admission = Admission(self._queue, self._table, self._ledger, config, self.counters, self._fail)
        self._planner = Planner(
            self._table, self._admission, self._ledger, config, self.context_tokens, self._fail, self._drafter, clock
        )
        self._settler = Settler(
            self._table, self._admission, self._ledger, self.counters, self._events,
            context_tokens=self.context_tokens, context_shift=config.context_shift,
        )

    @property
    def info(self) -> ModelInfo:
        return self.model.info

    @property
    def is_idle(self) -> bool:
        return not self._rows and not self._events

    def submit(self, work: GenerateWork) -> None:
        problem: MlxcelError | None = None
        if work.id in self._rows:
            problem = InvalidRequest(f"the id {work.id} is already in use")
        elif not work.prompt_ids:
            problem = InvalidRequest("the prompt has no tokens", param="prompt")
        elif len(work.prompt_ids) >= self.context_tokens:
            problem = ContextOverflow(len(work.prompt_ids), self.context_tokens)
        if problem is not None:
            self._events.append(Failed(work.id, problem))
            return
        row_id = next(self._row_ids)
        now_s = self._clock()
        row = Row(work, row_id, (queue_key(work.priority, now_s), row_id), now_s)
        if self._drafter is not None:
            row.pace = DraftPace(self._drafter.kind, self._config.draft_tokens or self._drafter.max_tokens)
        self._rows[work.id] = row
        self._queue.add(row)

    def cancel(self, work_id: str) -> None:
        row = self._rows.get(work_id)
        if row is None or row.state is RowState.ENDED:
            return
        self._settler.finish(row, FinishReason.CANCELLED, self._clock())

    def step(self) -> Sequence[EngineEvent]:
        plan = self.schedule()
        self._batch_rows = len(plan.rows)
        if plan.rows:
            started_s = self._clock()
            try:
                result = self.model.run(plan)
            except Exception as error:
                self._on_fault(plan, error)
            else:
                self._faults_in_a_row = 0
                self.settle(plan, result, self._clock() - started_s)
        return self._drain()

    def schedule(self) -> StepPlan:
        """Admit what can be admitted and decide the next step."""
        if len(self._queue):
            self._admission.admit(self._clock())
        return self._planner.plan()

    def settle(self, plan: StepPlan, result: StepResult, step_s: float) -> None:
        """Take the results of ``plan``, which ran for ``step_s`` seconds."""
        self._planner.observe(self._settler.settle(plan, result, self._clock()), step_s)

    def close(self) -> None:
        for row in [row for row in self._rows.values() if row.state is not RowState.ENDED]:
            self._fail(row, GenerationFailed("the engine was stopped"))
        self._rows.clear()
        self._ledger.close()
        if self._drafter is not None:
            self._drafter.close()
        self.model.shutdown()

    def stats(self) -> EngineStats:
        """A snapshot. Safe to call from any thread."""
        rows = list(self._table.slots)
        slots = [SlotStatus(place, "idle") if row is None else _status(place, row) for place, row in enumerate(rows)]
        queued = [
            SlotStatus(place, "queued", row.work.id, row.prompt_tokens)
            for place, row in enumerate(self._queue, start=len(slots))
        ]
        return make_stats(
            self.counters, slots, queued=queued, batch_rows=self._batch_rows, pool=self._ledger.usage(),
            drafting=self._drafting(),
        )

    def end_thinking(self, work_id: str) -> bool:
        """End the thinking block of a work, of all its choices; False when there is no such work or it may not be ended."""
        rows = [row for row in self._rows.values() if row.work.id == work_id or row.work.id.startswith(f"{work_id}-")]
        ended = [row.thinking.end() for row in rows if row.state is not RowState.ENDED and row.thinking is not None]
        return any(ended)

    def slot_record(self, slot: int) -> SlotRecord | None:
        """What a slot computed last; None when it has computed nothing."""
        return self._table.records[slot]

    def set_slot_record(self, slot: int, record: SlotRecord | None) -> SlotRecord | None:
        """Replace what a slot computed last; returns what it was."""
        before, self._table.records[slot] = self._table.records[slot], record
        return before

    def cache_stats(self) -> CacheStats:
        """Statistics of the prefix cache. Safe to call from any thread."""
        return self._ledger.cache_stats()

    def reset_cache(self) -> CacheStats:
        """Empty the prefix cache; returns its statistics of before."""
        before = self._ledger.cache_stats()
        self._ledger.reset_cache()
        return before

    def check(self) -> None:
        """Compare the block ledger with the rows.

        Raises:
            BlockAccountingError: when they differ.
        """
        self._ledger.check(self._table.running)

    def _drafting(self) -> Drafting:
        if self._drafter is None:
            return Drafting()
        tokens = self._config.draft_tokens or self._drafter.max_tokens
        return Drafting(self._drafter.kind, tokens, self._planner.drafting_pays(1))

    def _make_ledger(self) -> StateLedger:
        settings, counters = self._config.cache, self.counters.cache
        if self.model.info.state == "snapshot":
            return SnapshotLedger(self.model, settings, counters=counters, clock=self._clock)
        watermark = self._config.kv_admission_watermark
        return PagedLedger(self.model, settings, watermark=watermark, counters=counters, clock=self._clock)

    def _drain(self) -> Sequence[EngineEvent]:
        events = self._events.copy()
        self._events.clear()
        for event in events:
            if isinstance(event, (Finished, Failed)):
                row = self._rows.get(event.id)
                if row is not None and row.state is RowState.ENDED:
                    del self._rows[event.id]
        if self._config.check_invariants and not self._rows:
            self.check()
        return events

    def _fail(self, row: Row, error: MlxcelError) -> None:
        self._settler.fail(row, error)

    def _on_fault(self, plan: StepPlan, error: Exception) -> None:
        """A step failed as a whole. Out of memory costs the newest row; anything else every row of the step."""
        self._faults_in_a_row += 1
        self.counters.device_faults += 1
        log.error("a step of %d rows failed", len(plan.rows), exc_info=error)
        if self._faults_in_a_row >= _MAX_DEVICE_FAULTS and not _is_out_of_memory(error):
            raise error
        rows = [self._table[step.row_id] for step in plan.rows]
        if not _is_out_of_memory(error):
            for row in rows:
                self._fail(row, GenerationFailed("the generation of this request failed inside the engine"))
            return
        rows.sort(key=lambda row: row.row_id)
        self._fail(rows.pop(), GenerationFailed("the server ran out of memory while generating"))
        for row in rows:
            self._restore(row)

    def _restore(self, row: Row) -> None:
        """The failed step may have left anything in the runner: set the row back to its last settled state."""
        if self.model.info.state == "snapshot":
            self._admission.suspend(row, sound=False)
            return
        try:
            self._table.reopen(row)
        except Exception:
            log.exception("row %d could not be opened again", row.row_id)
            self._fail(row, GenerationFailed("the generation of this request failed inside the engine"))


def slot_context_tokens(info: ModelInfo, config: EngineConfig) -> int:
    """Window of one work: the configured one, no more than the model's, no more than the KV pool holds."""
    window = config.context_tokens_per_slot or info.context_tokens
    if info.context_tokens:
        window = min(window, info.context_tokens)
    return min(window, info.block_count * info.block_tokens) if info.state == "paged" else window


def _make_drafter(model: ModelRunner, draft_model: ModelRunner | None, config: EngineConfig) -> Drafter | None:
    if draft_model is not None:
        if not model.info.supports_drafts:
            raise StartupError("--draft-model: the served model has recurrent state and cannot verify drafts; leave it out")
        if not model.verifies_exactly():
            log.warning("verifying drafts rounds otherwise than plain decoding here: near-ties may be decided differently")
        return ModelDrafter(draft_model, model.info.vocab_size)
    if config.prompt_lookup is False or not model.info.supports_drafts:
        return None
    return PromptLookup() if config.prompt_lookup or model.verifies_exactly() else None


def _status(place: int, row: Row) -> SlotStatus:
    state: SlotState = "prefill" if row.state is RowState.PREFILL else "decoding"
    return SlotStatus(place, state, row.work.id, row.prompt_tokens)


def _is_out_of_memory(error: Exception) -> bool:
    """True for Python's MemoryError and for torch's errors of that meaning (told by name: the engine knows no torch)."""
    return isinstance(error, MemoryError) or "outofmemory" in type(error).__name__.lower()

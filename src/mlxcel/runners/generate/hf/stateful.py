"""A runner for models whose state cannot live in shared blocks: recurrent, hybrid and otherwise unusual families."""

from __future__ import annotations

import torch

from mlxcel.core.errors import GenerationFailed
from mlxcel.core.ports import ModelInfo
from mlxcel.core.work import RowResult, RowSpec, RowStep, StepPlan, StepResult
from mlxcel.runners.generate.choice import RunnerChoice
from mlxcel.runners.generate.hf.row_state import RowFeeder, RowState
from mlxcel.runners.generate.lora.bank import AdapterBank, Scales
from mlxcel.runners.generate.runner import active_adapters
from mlxcel.runners.generate.sampler import Draw, Sampler


class StatefulRunner:
    """A :class:`~mlxcel.core.ports.ModelRunner` that feeds row after row and samples them together.

    Args:
        feeder: runs the model on one row's state.
        sampler: draws tokens.
        info: what the engine is told; ``state`` is "snapshot".
        choice: how this path was chosen.
        snapshot_budget_bytes: what all snapshots together may take.
        bank: LoRA adapters that the model's modules apply.
    """

    def __init__(
        self,
        feeder: RowFeeder,
        sampler: Sampler,
        info: ModelInfo,
        choice: RunnerChoice,
        snapshot_budget_bytes: int,
        bank: AdapterBank,
    ) -> None:
        self._bank = bank
        self._adapters: dict[int, Scales] = {}
        self._feeder = feeder
        self._sampler = sampler
        self._info = info
        self.choice = choice
        self._rows: dict[int, RowState] = {}
        self._snapshots: dict[int, RowState] = {}
        self._free_bytes = snapshot_budget_bytes
        self._next_handle = 1

    @property
    def info(self) -> ModelInfo:
        return self._info

    def open(self, row: RowSpec) -> None:
        """See :meth:`PagedRunner.open <mlxcel.runners.generate.runner.PagedRunner.open>`."""
        adapters = active_adapters(row, self._bank.count)
        if len(self._rows) >= self._info.max_rows:
            raise MemoryError(f"all {self._info.max_rows} rows are open")
        self._sampler.open(row)
        self._rows[row.row_id] = RowState()
        self._adapters[row.row_id] = adapters

    def close(self, row_id: int) -> None:
        if self._rows.pop(row_id, None) is not None:
            del self._adapters[row_id]
            self._sampler.close(row_id)

    def run(self, plan: StepPlan) -> StepResult:
        """Feed the rows one after another; a row that raises gets an error result."""
        results: dict[int, RowResult] = {}
        logits: list[torch.Tensor] = []
        draws: list[Draw] = []
        for step in plan.rows:
            try:
                last = self._feed(step)
            except GenerationFailed as error:
                results[step.row_id] = RowResult(step.row_id, error=error)
                continue
            if step.sample:
                logits.append(last)
                draws.append(Draw(step.row_id, step.forced_id, step.constrained))
        if draws:
            results.update((result.row_id, result) for result in self._sampler.sample(torch.cat(logits), draws))
        return StepResult(tuple(results.get(step.row_id) or RowResult(step.row_id) for step in plan.rows))

    def snapshot(self, row_id: int) -> int | None:
        state = self._rows[row_id]
        size_bytes = state.size_bytes
        if size_bytes > self._free_bytes:
            return None
        handle = self._next_handle
        self._next_handle += 1
        self._snapshots[handle] = state.copy()
        self._free_bytes -= size_bytes
        return handle

    def restore(self, row_id: int, handle: int) -> None:
        self._rows[row_id] = self._snapshots[handle].copy()

    def drop_snapshot(self, handle: int) -> None:
        state = self._snapshots.pop(handle, None)
        if state is not None:
            self._free_bytes += state.size_bytes

    def verifies_exactly(self) -> bool:
        """It verifies no drafts."""
        return False

    def shutdown(self) -> None:
        for row_id in tuple(self._rows):
            self.close(row_id)
        self._snapshots.clear()
        del self._feeder

    def _feed(self, step: RowStep) -> torch.Tensor:
        state = self._rows.get(step.row_id)
        if state is None:
            raise GenerationFailed(f"row {step.row_id} is not open")
        if not step.token_ids or step.draft_ids or step.position != state.length:
            raise GenerationFailed(f"the row holds {state.length} tokens; it can only be continued from there")
        if min(step.token_ids) < 0 or max(step.token_ids) >= self._info.vocab_size:
            raise GenerationFailed(f"a token id lies outside the vocabulary of {self._info.vocab_size}")
        if state.length + len(step.token_ids) > self._info.context_tokens:
            raise GenerationFailed(f"the row grew past its window of {self._info.context_tokens} tokens")
        self._bank.begin_row(self._adapters[step.row_id])
        try:
            return self._feeder.feed(state, step.token_ids)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise GenerationFailed("the model failed on this row") from error

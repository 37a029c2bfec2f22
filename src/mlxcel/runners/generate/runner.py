"""Runs step plans on a decoder with paged KV: block tables in, sampled tokens out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from mlxcel.core.errors import CapabilityMissing, GenerationFailed
from mlxcel.core.ports import BlockTransfer, ModelInfo
from mlxcel.core.work import RowResult, RowSpec, RowStep, StepPlan, StepResult
from mlxcel.runners.generate.batch import Decoder, RaggedBatch
from mlxcel.runners.generate.choice import RunnerChoice
from mlxcel.runners.generate.exactness import block_equals_chain
from mlxcel.runners.generate.lora.bank import Scales
from mlxcel.runners.generate.sampler import Draw, Sampler


@dataclass(slots=True)
class _Row:
    """An open row. ``slot`` is its line in the block table; ``block_count`` the filled entries of that line."""

    slot: int
    block_count: int
    adapters: Scales = ()


class TransferringDecoder(Decoder, BlockTransfer, Protocol):
    """A decoder that can export and import its KV blocks."""


class PagedRunner:
    """A :class:`~mlxcel.core.ports.ModelRunner` over any decoder.

    Args:
        decoder: runs the forward pass and owns the KV pool.
        sampler: draws tokens from its logits.
        info: what the engine is told; ``context_tokens`` bounds a row's block table.
        choice: how this path was chosen.
        adapter_count: LoRA adapters that rows may name.
    """

    def __init__(
        self, decoder: Decoder, sampler: Sampler, info: ModelInfo, choice: RunnerChoice, adapter_count: int = 0
    ) -> None:
        self._decoder = decoder
        self._sampler = sampler
        self._info = info
        self.choice = choice
        self._adapter_count = adapter_count
        blocks_per_row = -(-info.context_tokens // decoder.block_tokens)
        self._tables = np.zeros((info.max_rows, blocks_per_row), dtype=np.int32)
        self._free_slots = list(range(info.max_rows - 1, -1, -1))
        self._rows: dict[int, _Row] = {}

    @property
    def info(self) -> ModelInfo:
        return self._info

    def open(self, row: RowSpec) -> None:
        """See :class:`~mlxcel.core.ports.ModelRunner`.

        Raises:
            MemoryError: all rows are in use.
            CapabilityMissing: the row wants an adapter that is not loaded.
        """
        adapters = active_adapters(row, self._adapter_count)
        if not self._free_slots:
            raise MemoryError(f"all {self._info.max_rows} rows are open")
        opened = _Row(self._free_slots[-1], 0, adapters)
        self._append_blocks(opened, row.blocks)
        self._sampler.open(row)
        self._free_slots.pop()
        self._rows[row.row_id] = opened

    def close(self, row_id: int) -> None:
        row = self._rows.pop(row_id, None)
        if row is not None:
            self._free_slots.append(row.slot)
            self._sampler.close(row_id)

    def run(self, plan: StepPlan) -> StepResult:
        """Run one ragged batch; a row that cannot run gets an error result and is left out of the batch."""
        assembly = _Assembly()
        failed: dict[int, RowResult] = {}
        for step in plan.rows:
            try:
                self._place(step, assembly)
            except GenerationFailed as error:
                failed[step.row_id] = RowResult(step.row_id, error=error)
        sampled = self._sample(assembly) if assembly.token_ids else {}
        sampled.update(failed)
        return StepResult(tuple(sampled.get(step.row_id) or RowResult(step.row_id) for step in plan.rows))

    def snapshot(self, row_id: int) -> int | None:
        """Paged rows share blocks instead; there is nothing to copy."""
        return None

    def restore(self, row_id: int, handle: int) -> None:
        raise ValueError("a paged model has no snapshots; adopt blocks instead")

    def drop_snapshot(self, handle: int) -> None:
        """There are none."""

    def verifies_exactly(self) -> bool:
        """See :class:`~mlxcel.core.ports.ModelRunner`. Overwrites the first KV blocks."""
        return block_equals_chain(self._decoder, self._info.context_tokens)

    def shutdown(self) -> None:
        for row_id in tuple(self._rows):
            self.close(row_id)
        del self._decoder

    def _append_blocks(self, row: _Row, blocks: Sequence[int]) -> None:
        stop = row.block_count + len(blocks)
        if stop > self._tables.shape[1]:
            raise GenerationFailed(f"the row grew past its window of {self._info.context_tokens} tokens")
        if blocks and not 0 <= min(blocks) <= max(blocks) < self._decoder.block_count:
            raise GenerationFailed("a KV block id lies outside the pool")
        self._tables[row.slot, row.block_count : stop] = blocks
        row.block_count = stop

    def _place(self, step: RowStep, assembly: _Assembly) -> None:
        """Add a row's tokens to the batch under assembly. Raises GenerationFailed, leaving the assembly as it was."""
        row = self._rows.get(step.row_id)
        if row is None:
            raise GenerationFailed(f"row {step.row_id} is not open")
        if step.new_blocks:
            self._append_blocks(row, step.new_blocks)
        fed = step.token_ids + step.draft_ids if step.draft_ids else step.token_ids
        context = step.position + len(fed)
        if not step.token_ids or step.position < 0 or context > row.block_count * self._decoder.block_tokens:
            raise GenerationFailed("the row's tokens do not fit its KV blocks")
        if min(fed) < 0 or max(fed) >= self._decoder.vocab_size:
            raise GenerationFailed(f"a token id lies outside the vocabulary of {self._decoder.vocab_size}")
        assembly.add(step, row.slot, fed, context, row.adapters)

    def _sample(self, assembly: _Assembly) -> dict[int, RowResult]:
        logits = self._decoder.forward(assembly.batch(self._tables, self._decoder.block_tokens))
        if not assembly.drafts:
            results = self._sampler.sample(logits, assembly.draws)
        else:
            results = self._sampler.sample(logits[assembly.plain_outputs], assembly.draws)
            for draft in assembly.drafts:
                rows = logits[draft.first_output : draft.first_output + len(draft.token_ids) + 1]
                results.append(self._sampler.verify(rows, draft.draw, draft.token_ids))
        return {result.row_id: result for result in results}


class TransferringRunner(PagedRunner):
    """A paged runner whose decoder hands out KV blocks as bytes (:class:`~mlxcel.core.ports.BlockTransfer`)."""

    def __init__(
        self,
        decoder: TransferringDecoder,
        sampler: Sampler,
        info: ModelInfo,
        choice: RunnerChoice,
        adapter_count: int = 0,
    ) -> None:
        super().__init__(decoder, sampler, info, choice, adapter_count)
        self._blocks: BlockTransfer = decoder

    def export_block(self, block: int) -> bytes:
        """See :class:`~mlxcel.core.ports.BlockTransfer`."""
        return self._blocks.export_block(block)

    def import_block(self, block: int, data: bytes) -> None:
        """See :class:`~mlxcel.core.ports.BlockTransfer`."""
        self._blocks.import_block(block, data)

    def shutdown(self) -> None:
        super().shutdown()
        del self._blocks


@dataclass(frozen=True, slots=True)
class _Draft:
    """A proposed continuation; its logits are the outputs from ``first_output`` on, one more than ``token_ids``."""

    draw: Draw
    token_ids: tuple[int, ...]
    first_output: int


class _Assembly:
    """Columns of the batch of one step, grown row by row.

    Attributes:
        draws: rows that take one token; their logits are the outputs ``plain_outputs``.
        drafts: rows whose draft is to be verified.
    """

    __slots__ = (
        "_adapters",
        "_contexts",
        "_logit_indices",
        "_positions",
        "_slots",
        "_starts",
        "drafts",
        "draws",
        "plain_outputs",
        "token_ids",
    )

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.draws: list[Draw] = []
        self.plain_outputs: list[int] = []
        self.drafts: list[_Draft] = []
        self._positions: list[int] = []
        self._starts = [0]
        self._adapters: list[Scales] = []
        self._contexts: list[int] = []
        self._slots: list[int] = []
        self._logit_indices: list[int] = []

    def add(self, step: RowStep, slot: int, fed: Sequence[int], context: int, adapters: Scales) -> None:
        self._adapters.append(adapters)
        self.token_ids.extend(fed)
        self._positions.extend(range(step.position, context))
        stop = len(self.token_ids)
        self._starts.append(stop)
        self._contexts.append(context)
        self._slots.append(slot)
        if not step.sample:
            return
        draw = Draw(step.row_id, step.forced_id, step.constrained)
        if step.draft_ids:
            self.drafts.append(_Draft(draw, step.draft_ids, len(self._logit_indices)))
            self._logit_indices.extend(range(stop - 1 - len(step.draft_ids), stop))
        else:
            self.draws.append(draw)
            self.plain_outputs.append(len(self._logit_indices))
            self._logit_indices.append(stop - 1)

    def batch(self, tables: np.ndarray[tuple[int, int], np.dtype[np.int32]], block_tokens: int) -> RaggedBatch:
        width = -(-max(self._contexts) // block_tokens)
        return RaggedBatch(
            token_ids=_int32(self.token_ids),
            positions=_int32(self._positions),
            row_starts=_int32(self._starts),
            context_lens=_int32(self._contexts),
            block_tables=torch.from_numpy(tables[self._slots, :width]),
            logit_indices=_int32(self._logit_indices),
            row_adapters=tuple(self._adapters) if any(self._adapters) else (),
        )


def active_adapters(row: RowSpec, adapter_count: int) -> Scales:
    """The LoRA adapters that change a row's results. Raises CapabilityMissing when one of them is not loaded."""
    active = tuple((adapter, scale) for adapter, scale in row.adapters if scale != 0.0)
    if any(not 0 <= adapter < adapter_count for adapter, _ in active):
        raise CapabilityMissing(f"no LoRA adapter has that id ({adapter_count} are loaded); leave it out of lora")
    return active


def _int32(values: list[int]) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.int32))

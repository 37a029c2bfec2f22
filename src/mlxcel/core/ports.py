"""The seams between rooms, as Protocols: what the engine asks of a runner, and what a runner asks of a constraint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from mlxcel.core.events import EngineEvent
    from mlxcel.core.vectors import TokenRow
    from mlxcel.core.work import GenerateWork, RowSpec, StepPlan, StepResult

RowOutput = TypeVar("RowOutput", covariant=True)


class Constraint(Protocol):
    """A grammar matcher of one row. Built off the event loop, used by the owner thread only.

    Bit ``i`` of the mask (word ``i // 32``, bit ``i % 32``, little-endian int32 words) is 1 when token ``i`` may come next.
    """

    def fill_mask(self, address: int, word_count: int) -> None:
        """Write the mask into ``word_count`` int32 words at memory ``address``. Does not change the matcher."""

    def accept(self, token_id: int) -> bool:
        """Advance by one sampled token; False when the token did not conform (the row then fails)."""

    def rollback(self, token_count: int) -> None:
        """Take back the last ``token_count`` accepted tokens (rejected drafts)."""

    @property
    def is_finished(self) -> bool:
        """True when the grammar is complete and only an end-of-generation token may follow."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the engine and the services need to know about a loaded model.

    Attributes:
        name: display name and request id (first alias).
        fingerprint: digest of the weights, dtype and KV mode; part of every cache key.
        vocab_size: rows of the logits.
        context_tokens: the model's own window.
        state: "paged" keeps KV in shared blocks; "snapshot" keeps opaque per-row state that can be copied as a whole.
        block_tokens: tokens per KV block.
        block_count: blocks in the pool (0 for "snapshot").
        bytes_per_token: KV bytes of one token over all layers.
        state_bytes: bytes of one row's fixed state ("snapshot" and hybrid models).
        max_rows: rows the runner can hold open.
        supports_drafts: True when ``RowStep.draft_ids`` may be used.
    """

    name: str
    fingerprint: str
    vocab_size: int
    context_tokens: int
    state: Literal["paged", "snapshot"] = "paged"
    block_tokens: int = 16
    block_count: int = 0
    bytes_per_token: int = 0
    state_bytes: int = 0
    max_rows: int = 4
    supports_drafts: bool = False


class ModelRunner(Protocol):
    """Executes steps of one causal model. All calls come from the owner thread."""

    @property
    def info(self) -> ModelInfo:
        """Constant after construction."""

    def open(self, row: RowSpec) -> None:
        """Make room for a row. Raises MemoryError when there is none."""

    def run(self, plan: StepPlan) -> StepResult:
        """Run one ragged batch. A failure of one row is reported in its result; only a fault of the device raises."""

    def close(self, row_id: int) -> None:
        """Forget a row. Unknown ids are ignored."""

    def snapshot(self, row_id: int) -> int | None:
        """Copy a row's whole state ("snapshot" models) and return a handle; None when it does not fit."""

    def restore(self, row_id: int, handle: int) -> None:
        """Set a freshly opened row's state to a copy of the snapshot."""

    def drop_snapshot(self, handle: int) -> None:
        """Free a snapshot."""

    def verifies_exactly(self) -> bool:
        """Whether verifying drafts gives the logits of plain decoding bit for bit, measured. Called while no row is open."""

    def shutdown(self) -> None:
        """Free the weights and the caches. No call follows."""


@runtime_checkable
class BlockTransfer(Protocol):
    """An optional part of a "paged" model runner: KV blocks as bytes, for a cache outside the pool. Owner thread only.

    The bytes are good for runners with the same ``ModelInfo.fingerprint`` and ``block_tokens`` only.
    """

    def export_block(self, block: int) -> bytes:
        """Keys and values of all layers of one full block."""

    def import_block(self, block: int, data: bytes) -> None:
        """Fill a block. Raises ValueError, and changes nothing, when ``data`` does not have the right size."""


class Runner(Protocol):
    """What a worker thread drives, whatever the modality: every submitted work ends in exactly one Finished or Failed."""

    def submit(self, work: GenerateWork) -> None:
        """Take a work. Never blocks, never raises for the work's own faults (those become a Failed event)."""

    def cancel(self, work_id: str) -> None:
        """End a work early; its terminal event is still delivered. Unknown ids are ignored."""

    def step(self) -> Sequence[EngineEvent]:
        """Advance by one step and return what happened, in order."""

    @property
    def is_idle(self) -> bool:
        """True when a step would do nothing."""

    def close(self) -> None:
        """Fail all live work and free everything."""


class RowRunner(Protocol[RowOutput]):
    """A model that maps sequences to results without keeping state between calls. All calls come from the owner thread."""

    def run(self, rows: Sequence[TokenRow]) -> Sequence[RowOutput]:
        """One result a row, in order; a row's result does not depend on the others."""

    def close(self) -> None:
        """Free the weights. No call follows."""

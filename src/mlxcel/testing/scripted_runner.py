"""A model runner without a model: it says what a script says, when the script says it.

It takes the place of a real :class:`~mlxcel.core.ports.ModelRunner` in tests and overhead measurements, and it is strict
about what a real one has to trust: positions follow one another, adopted blocks hold the tokens they are adopted for, no row
writes into a block that another row holds. A breach is recorded in ``violations`` and raised.
"""

from __future__ import annotations

import array
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from mlxcel.core.events import TokenLogprob
from mlxcel.core.ports import Constraint, ModelInfo
from mlxcel.core.work import RowResult, RowSpec, RowStep, StepPlan, StepResult

Script = Callable[[tuple[int, ...]], Sequence[int | Exception]]

SCRIPTED_MODEL = ModelInfo(
    name="scripted",
    fingerprint="scripted",
    vocab_size=1024,
    context_tokens=8192,
    block_tokens=16,
    block_count=2048,
    bytes_per_token=64,
    max_rows=32,
    supports_drafts=True,
)


class ContractBreach(RuntimeError):
    """The engine did something that would corrupt a real model's state."""


@dataclass(slots=True)
class _Row:
    spec: RowSpec
    script: Sequence[int | Exception]
    history: list[int]  # prompt and generated tokens
    computed_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    is_torn: bool = False  # a step failed with this row in it; its state is undefined until it is opened again


class ScriptedRunner:
    """Runs scripts instead of a model.

    Args:
        script: prompt ids -> the tokens to generate, one per draw; an exception in their place fails the row at that draw.
            After the last one comes ``end_id`` for ever. A plain sequence serves every prompt.
        info: what the engine is told; its block counts and row limits are enforced.
        end_id: end-of-generation token.
        step_s: seconds every step takes.
        decode_row_s: seconds per row and step that feeds one token.
        prefill_token_s: seconds per token of longer pieces (prompt slices, and tokens with drafts).
        faults: step number (from 0) -> exception raised by that ``run`` as a whole.
        sleep: how time is spent; ``FakeClock.sleep`` in tests.
    """

    def __init__(
        self,
        script: Script | Sequence[int | Exception],
        *,
        info: ModelInfo = SCRIPTED_MODEL,
        end_id: int = 2,
        step_s: float = 0.0,
        decode_row_s: float = 0.0,
        prefill_token_s: float = 0.0,
        faults: Mapping[int, Exception] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.plans: list[StepPlan] = []  # every plan that was run, for assertions
        self.violations: list[str] = []
        self.is_shut_down = False
        self._script: Script = script if callable(script) else lambda prompt_ids: script
        self._info = info
        self._end_id = end_id
        self._step_s = step_s
        self._decode_row_s = decode_row_s
        self._prefill_token_s = prefill_token_s
        self._faults = dict(faults or {})
        self._sleep = sleep
        self._rows: dict[int, _Row] = {}
        self._holders: dict[int, set[int]] = {}  # block -> ids of the open rows that hold it
        self._contents: dict[int, list[int]] = {}  # block -> token ids written, from its start
        self._snapshots: dict[int, tuple[int, ...]] = {}
        self._handles = itertools.count()
        self._steps_run = 0

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def open_rows(self) -> int:
        return len(self._rows)

    @property
    def snapshot_count(self) -> int:
        return len(self._snapshots)

    def open(self, row: RowSpec) -> None:
        if row.row_id in self._rows:
            self._breach(f"row {row.row_id} is opened twice")
        if len(self._rows) >= self._info.max_rows:
            raise MemoryError("no free row")
        history = [*row.prompt_ids, *row.generated_ids]
        state = _Row(row, self._script(row.prompt_ids), history)
        self._rows[row.row_id] = state
        self._hold(state, row.blocks)
        held = [token for block in row.blocks for token in self._contents.get(block, [])]
        if held[: len(history)] != history[: len(held)]:
            self._breach(f"row {row.row_id} adopts blocks that hold other tokens than its own")
        state.computed_tokens = min(len(held), len(history))

    def run(self, plan: StepPlan) -> StepResult:
        fault = self._faults.get(self._steps_run)
        self._steps_run += 1
        self.plans.append(plan)
        self._spend(plan)
        if fault is not None:
            for step in plan.rows:
                self._rows[step.row_id].is_torn = True
            raise fault
        return StepResult(tuple(self._run_row(step) for step in plan.rows))

    def close(self, row_id: int) -> None:
        row = self._rows.pop(row_id, None)
        if row is not None:
            for block in row.blocks:
                self._holders[block].discard(row_id)

    def snapshot(self, row_id: int) -> int | None:
        row = self._rows[row_id]
        if row.is_torn:
            self._breach(f"row {row_id} is copied after a failed step")
        handle = next(self._handles)
        self._snapshots[handle] = tuple(row.history[: row.computed_tokens])
        return handle

    def restore(self, row_id: int, handle: int) -> None:
        row = self._rows[row_id]
        state = self._snapshots[handle]
        if tuple(row.history[: len(state)]) != state:
            self._breach(f"row {row_id} is restored from a snapshot of other tokens")
        row.computed_tokens = len(state)

    def drop_snapshot(self, handle: int) -> None:
        if self._snapshots.pop(handle, None) is None:
            self._breach(f"snapshot {handle} is dropped twice")

    def export_block(self, block: int) -> bytes:
        return array.array("I", self._contents[block]).tobytes()

    def import_block(self, block: int, data: bytes) -> None:
        if len(data) != 4 * self._info.block_tokens:
            raise ValueError("a block of another size")
        self._contents[block] = array.array("I", data).tolist()

    def verifies_exactly(self) -> bool:
        return self._info.supports_drafts

    def shutdown(self) -> None:
        self.is_shut_down = True
        self._rows.clear()
        self._contents.clear()
        self._snapshots.clear()

    # ---- one step -------------------------------------------------------------------------------------------------

    def _spend(self, plan: StepPlan) -> None:
        fed = [len(step.token_ids) + len(step.draft_ids) for step in plan.rows]
        prefill_tokens = sum(count for count in fed if count > 1)
        seconds = self._step_s + self._decode_row_s * fed.count(1) + self._prefill_token_s * prefill_tokens
        if seconds > 0:
            self._sleep(seconds)

    def _run_row(self, step: RowStep) -> RowResult:
        row = self._rows.get(step.row_id)
        if row is None:
            self._breach(f"row {step.row_id} is run but not open")
        if row.is_torn:
            self._breach(f"row {step.row_id} goes on after a failed step")
        self._hold(row, step.new_blocks)
        self._feed(row, step, (*step.token_ids, *step.draft_ids))
        if not step.sample:
            return RowResult(step.row_id)
        if step.position + len(step.token_ids) != len(row.history):
            self._breach(f"row {step.row_id} samples before its last token is fed")
        token_ids: list[int] = []
        for draft_id in (*step.draft_ids, None):
            try:
                token_id = self._next_token(row, step)
            except Exception as error:  # the tokens before it stand
                return RowResult(step.row_id, tuple(token_ids), self._logprobs(row, token_ids), error)
            row.history.append(token_id)
            token_ids.append(token_id)
            if token_id != draft_id or (step.constrained and _is_complete(row)):
                break
            row.computed_tokens += 1
        if step.draft_ids:
            self._forget_after(row, row.computed_tokens)
        return RowResult(step.row_id, tuple(token_ids), self._logprobs(row, token_ids))

    def _feed(self, row: _Row, step: RowStep, fed_ids: tuple[int, ...]) -> None:
        end = step.position + len(step.token_ids)
        if not step.token_ids or step.position > row.computed_tokens:
            self._breach(f"row {step.row_id} leaves a gap before position {step.position}")
        if tuple(row.history[step.position : end]) != step.token_ids:
            self._breach(f"row {step.row_id} is fed other tokens than its own at position {step.position}")
        if self._info.state == "paged":
            for place, token_id in enumerate(fed_ids, start=step.position):
                self._write(row, place, token_id)
        row.computed_tokens = end

    def _write(self, row: _Row, position: int, token_id: int) -> None:
        index, offset = divmod(position, self._info.block_tokens)
        if index >= len(row.blocks):
            self._breach(f"row {row.spec.row_id} has no block for position {position}")
        block = row.blocks[index]
        if len(self._holders[block]) > 1:
            self._breach(f"row {row.spec.row_id} writes into block {block}, which other rows hold")
        contents = self._contents.setdefault(block, [])
        del contents[offset:]
        contents.append(token_id)

    def _forget_after(self, row: _Row, position: int) -> None:
        """What rejected drafts left in the blocks is not the row's."""
        size = self._info.block_tokens
        for index in range(position // size, len(row.blocks)):
            contents = self._contents.get(row.blocks[index])
            if contents is not None:
                del contents[max(0, position - index * size) :]

    def _next_token(self, row: _Row, step: RowStep) -> int:
        if step.forced_id is not None:
            return step.forced_id
        place = len(row.history) - len(row.spec.prompt_ids)
        token = row.script[place] if place < len(row.script) else self._end_id
        if isinstance(token, Exception):
            raise token
        constraint = row.spec.constraint
        if step.constrained and constraint is not None:
            token = _allowed_token(constraint, token, self._info.vocab_size)
            if not constraint.accept(token):
                raise ValueError("the constraint refused a token that its mask allowed")
        return token

    def _logprobs(self, row: _Row, token_ids: list[int]) -> tuple[TokenLogprob, ...]:
        count = row.spec.sampling.top_logprobs
        if count < 0:
            return ()
        return tuple(
            TokenLogprob(token, -0.25, tuple((token + rank, -0.25 - rank) for rank in range(count))) for token in token_ids
        )

    def _hold(self, row: _Row, blocks: Sequence[int]) -> None:
        for block in blocks:
            if not 0 <= block < self._info.block_count:
                self._breach(f"block {block} does not exist")
            row.blocks.append(block)
            self._holders.setdefault(block, set()).add(row.spec.row_id)

    def _breach(self, message: str) -> NoReturn:
        self.violations.append(message)
        raise ContractBreach(message)


def _is_complete(row: _Row) -> bool:
    return row.spec.constraint is not None and row.spec.constraint.is_finished


def _allowed_token(constraint: Constraint, wanted: int, vocab_size: int) -> int:
    """``wanted`` if the mask allows it, else the smallest token that it allows."""
    mask = array.array("I", bytes(4 * ((vocab_size + 31) // 32)))
    constraint.fill_mask(mask.buffer_info()[0], len(mask))
    if mask[wanted // 32] >> (wanted % 32) & 1:
        return wanted
    for token in range(vocab_size):
        if mask[token // 32] >> (token % 32) & 1:
            return token
    raise ValueError("the constraint allows no token")

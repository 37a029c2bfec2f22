"""The open rows and their slots: the one place that opens and closes rows in the runner."""

from __future__ import annotations

from bisect import insort

from mlxcel.core.ports import ModelRunner
from mlxcel.engine.sched.kv import KvLedger
from mlxcel.engine.sched.row import Row, RowState


class RowTable:
    """Rows that hold a slot. ``running`` is ordered by strength: the last one gives way first."""

    def __init__(self, model: ModelRunner, kv: KvLedger, max_rows: int) -> None:
        self.slots: list[Row | None] = [None] * max_rows
        self.running: list[Row] = []
        self._by_id: dict[int, Row] = {}
        self._model = model
        self._kv = kv

    def __getitem__(self, row_id: int) -> Row:
        return self._by_id[row_id]

    @property
    def is_full(self) -> bool:
        return len(self.running) >= len(self.slots)

    def open(self, row: Row) -> bool:
        """Give a waiting row its blocks and a slot; False when there are not enough blocks.

        Raises:
            Exception: whatever the runner raises (MemoryError for no room); the row then holds nothing.
        """
        if not self._kv.open(row, alone=not self.running):
            return False
        try:
            self._model.open(row.spec())
        except Exception:
            self._kv.release(row)
            row.computed_tokens = 0
            raise
        row.slot = self.slots.index(None)
        row.state = RowState.PREFILL
        self.slots[row.slot] = row
        insort(self.running, row, key=lambda other: other.strength)
        self._by_id[row.row_id] = row
        return True

    def reopen(self, row: Row) -> None:
        """Set the runner's view of a row back to what the engine knows (after a step that failed midway)."""
        row.fresh_blocks = tuple(row.blocks[self._kv.blocks_for(row.computed_tokens) :])
        self._model.close(row.row_id)
        self._model.open(row.spec())

    def suspend(self, row: Row) -> None:
        """Take slot, blocks and state from a row that is to go on later."""
        self._leave(row)
        row.forget_state()

    def end(self, row: Row) -> None:
        """Close a row for good."""
        self._leave(row)
        row.state = RowState.ENDED

    def _leave(self, row: Row) -> None:
        self._model.close(row.row_id)
        self._kv.release(row)
        self.slots[row.slot] = None
        row.slot = -1
        self.running.remove(row)
        del self._by_id[row.row_id]

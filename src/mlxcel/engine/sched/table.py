"""The open rows and their slots: the one place that opens and closes rows in the runner."""

from __future__ import annotations

from bisect import insort

from mlxcel.core.ports import ModelInfo, ModelRunner
from mlxcel.core.work import SlotRecord
from mlxcel.engine.draft import Drafter
from mlxcel.engine.sched.ledger import StateLedger
from mlxcel.engine.sched.row import Row, RowState


class RowTable:
    """Rows that hold a slot. ``running`` is ordered by strength: the last one gives way first.

    Attributes:
        records: what each slot computed last.
    """

    def __init__(self, model: ModelRunner, ledger: StateLedger, max_rows: int, drafter: Drafter | None = None) -> None:
        self.slots: list[Row | None] = [None] * max_rows
        self.records: list[SlotRecord | None] = [None] * max_rows
        self.running: list[Row] = []
        self._by_id: dict[int, Row] = {}
        self._model = model
        self._ledger = ledger
        self._drafter = drafter

    def __getitem__(self, row_id: int) -> Row:
        return self._by_id[row_id]

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    @property
    def is_full(self) -> bool:
        return len(self.running) >= len(self.slots)

    def open(self, row: Row) -> bool:
        """Give a waiting row room and a slot; False when there is not enough room.

        Raises:
            Exception: whatever the runner raises (MemoryError for no room); the row then holds nothing.
        """
        if not self._ledger.open(row, alone=not self.running):
            return False
        try:
            self._model.open(row.spec())
            self._ledger.opened(row)
        except Exception:
            self._ledger.leave(row, sound=False)
            self._model.close(row.row_id)
            row.forget_state()
            raise
        row.slot = self.slots.index(None)
        row.state = RowState.PREFILL
        self.slots[row.slot] = row
        insort(self.running, row, key=lambda other: other.strength)
        self._by_id[row.row_id] = row
        return True

    def reopen(self, row: Row) -> None:
        """Set the runner's view of a row back to what the engine knows (after a step that failed midway)."""
        row.fresh_blocks = tuple(row.blocks[self._ledger.known_blocks(row) :])
        self._model.close(row.row_id)
        self._model.open(row.spec())

    def suspend(self, row: Row, *, sound: bool) -> None:
        """Take slot, blocks and state from a row that is to go on later."""
        self._leave(row, sound=sound)
        row.forget_state()

    def end(self, row: Row, *, sound: bool) -> None:
        """Close a row for good; ``sound`` when its state is what its tokens say, so that it may be reused."""
        if sound and row.work.remembered:
            work = row.work
            self.records[row.slot] = SlotRecord(tuple(row.tokens), work.cache.namespace, work.adapters)
        self._leave(row, sound=sound)
        row.state = RowState.ENDED

    def _leave(self, row: Row, *, sound: bool) -> None:
        self._ledger.leave(row, sound=sound)
        self._model.close(row.row_id)
        if self._drafter is not None:
            self._drafter.forget(row.row_id)
        self.slots[row.slot] = None
        row.slot = -1
        self.running.remove(row)
        del self._by_id[row.row_id]

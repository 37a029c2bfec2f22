"""From the queue into a slot: who is next, and whether there is room."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mlxcel.core.errors import GenerationFailed, MemoryBudgetExceeded, MlxcelError
from mlxcel.engine.config import EngineConfig
from mlxcel.engine.sched.ledger import StateLedger
from mlxcel.engine.sched.queue import RowQueue
from mlxcel.engine.sched.row import Row, RowState
from mlxcel.engine.sched.table import RowTable
from mlxcel.engine.stats import EngineCounters

log = logging.getLogger(__name__)


class Admission:
    """Opens waiting rows in queue order. A row without room holds up those behind it, so that none starves; one that only
    waits for a neighbour to compute a shared beginning does not."""

    def __init__(
        self, queue: RowQueue, table: RowTable, ledger: StateLedger, config: EngineConfig, counters: EngineCounters,
        fail: Callable[[Row, MlxcelError], None],
    ) -> None:
        self._queue = queue
        self._table = table
        self._ledger = ledger
        self._config = config
        self._counters = counters
        self._fail = fail

    def admit(self, now_s: float) -> None:
        """Open as many waiting rows as there are slots and blocks for."""
        for row in self._queue:
            if self._ledger.must_wait(row):
                continue
            if self._table.is_full and not self._make_room_for(row):
                return
            if not self._open(row, now_s):
                return

    def withdraw(self, row: Row) -> None:
        """Take a waiting row out for good."""
        self._queue.remove(row)
        row.state = RowState.ENDED

    def suspend(self, row: Row, *, sound: bool = True) -> None:
        """Put an open row back into the queue, to be computed anew; ``sound`` as in :meth:`RowTable.end`."""
        self._table.suspend(row, sound=sound)
        self._queue.add(row)

    def preempt(self, row: Row) -> None:
        """Suspend a row in favour of another one."""
        self._counters.preemptions += 1
        self.suspend(row)

    def _make_room_for(self, row: Row) -> bool:
        if not self._config.enable_preemption or not self._table.running:
            return False
        victim = self._table.running[-1]
        if victim.work.priority <= row.work.priority:
            return False
        self.preempt(victim)
        return True

    def _open(self, row: Row, now_s: float) -> bool:
        """False when the row has to wait. A row that can never be opened fails, and its successor may try."""
        try:
            opened = self._table.open(row)
        except MemoryError:
            opened = False
        except Exception as error:
            log.exception("row %d could not be opened", row.row_id)
            shown = error if isinstance(error, MlxcelError) else GenerationFailed("the request could not be started")
            self._fail(row, shown)
            return True
        if opened:
            self._queue.remove(row)
            if row.admitted_s < 0:
                row.admitted_s = now_s
                self._counters.sequences_started += 1
            return True
        if self._table.running:
            return False
        info = self._table.info
        budget_bytes = info.block_count * info.block_tokens * info.bytes_per_token
        self._fail(row, MemoryBudgetExceeded(len(row.tokens) * info.bytes_per_token + info.state_bytes, budget_bytes))
        return True

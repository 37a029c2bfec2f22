"""The works that wait for a slot, by priority and age."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from mlxcel.core.jobs import Priority
from mlxcel.engine.sched.row import Row

AGEING_S = 30.0  # a work that waits this much longer than one of the next higher priority goes first


def queue_key(priority: Priority, arrived_s: float) -> float:
    """Place in the queue, smaller first. It never changes, so that everything that waits long enough gets its turn."""
    return arrived_s + priority * AGEING_S


class RowQueue:
    """Rows in order of ``Row.order``. Short by construction (admission bounds it), hence a sorted list."""

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        """In order, over a copy: rows may leave while one looks at them, and other threads may look."""
        return iter(self._rows.copy())

    def add(self, row: Row) -> None:
        insort(self._rows, row, key=lambda waiting: waiting.order)

    def remove(self, row: Row) -> None:
        self._rows.remove(row)

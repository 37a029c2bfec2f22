"""What the scheduler asks of the keeper of model state, whichever kind of state the model has."""

from __future__ import annotations

from typing import Protocol

from mlxcel.engine.sched.row import Row
from mlxcel.engine.stats import PoolUsage
from mlxcel.prefix_cache.stats import CacheStats


class StateLedger(Protocol):
    """Gives rows room for their state, and keeps what later rows can use of it. Owner thread only, unless said otherwise."""

    def must_wait(self, row: Row) -> bool:
        """True while another open row is computing a beginning that this waiting row shares."""

    def open(self, row: Row, *, alone: bool) -> bool:
        """Give a waiting row room for its context and the next token, with as much of it as is already computed.

        Args:
            alone: no other row is open, so nothing needs to be spared for others.

        Returns:
            False, and nothing taken, when there is no room.
        """

    def opened(self, row: Row) -> None:
        """The runner has opened the row."""

    def grow(self, row: Row, tokens: int) -> bool:
        """Make room for ``tokens`` positions; False, and nothing taken, when there is none."""

    def next_stop(self, row: Row) -> int:
        """Position at which the next prompt piece has to end at the latest."""

    def computed(self, row: Row) -> None:
        """A prompt piece of the row was computed."""

    def leave(self, row: Row, *, sound: bool) -> None:
        """The row is about to be closed in the runner: keep what is worth keeping (if ``sound``) and take back the rest."""

    def known_blocks(self, row: Row) -> int:
        """Blocks of the row's table that hold computed state."""

    def usage(self) -> PoolUsage:
        """Blocks and entries now. Safe to call from any thread."""

    def cache_stats(self) -> CacheStats:
        """Statistics of the prefix cache. Safe to call from any thread."""

    def reset_cache(self) -> None:
        """Forget everything that no row uses."""

    def close(self) -> None:
        """Nothing follows; finish what was begun."""

    def check(self, rows: list[Row]) -> None:
        """Raises BlockAccountingError when the ledger and the open rows disagree."""

"""Which KV blocks a row gets, and what becomes of them. A model with whole-row state has no blocks; its rows need none."""

from __future__ import annotations

from mlxcel.core.ports import ModelInfo
from mlxcel.engine.sched.row import Row
from mlxcel.prefix_cache.blocks import BlockPool


class KvLedger:
    """Hands out blocks on demand."""

    def __init__(self, info: ModelInfo, *, watermark: float) -> None:
        self.pool = BlockPool(info.block_count if info.state == "paged" else 0, info.block_tokens)
        self._paged = info.state == "paged"
        self._spare_blocks = -int(-watermark * self.pool.block_count // 1)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that ``tokens`` positions take."""
        return -(-tokens // self.pool.block_tokens) if self._paged else 0

    def open(self, row: Row, *, alone: bool) -> bool:
        """Give a waiting row blocks for its whole context and the next token; False (nothing taken) when there is no room.

        Args:
            alone: no other row is open, so nothing needs to be spared.
        """
        needed = self.blocks_for(len(row.tokens) + 1)
        spare = 0 if alone else self._spare_blocks
        if needed + spare > self.pool.free_count:
            return False
        blocks = self.pool.allocate(needed)
        if blocks is None:
            return False
        row.blocks.extend(blocks)
        row.fresh_blocks = blocks
        return True

    def grow(self, row: Row, tokens: int) -> bool:
        """Make the row's table long enough for ``tokens`` positions; False (nothing taken) when there is no room."""
        missing = self.blocks_for(tokens) - len(row.blocks)
        if missing <= 0:
            return True
        blocks = self.pool.allocate(missing)
        if blocks is None:
            return False
        row.blocks.extend(blocks)
        row.fresh_blocks += blocks
        return True

    def release(self, row: Row) -> None:
        """Take everything back that the row holds."""
        for block in reversed(row.blocks):
            self.pool.release(block)
        row.blocks.clear()
        row.fresh_blocks = ()

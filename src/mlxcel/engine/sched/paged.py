"""Room and reuse for models whose KV state lives in shared blocks."""

from __future__ import annotations

import math
from collections.abc import Callable

from mlxcel.core.ports import ModelRunner
from mlxcel.engine.sched.row import Row
from mlxcel.engine.stats import PoolUsage
from mlxcel.prefix_cache.blocks import BlockPool
from mlxcel.prefix_cache.index import PrefixIndex
from mlxcel.prefix_cache.keys import extend_digests, root_digest
from mlxcel.prefix_cache.plan import adopted_blocks, reusable_blocks
from mlxcel.prefix_cache.settings import CacheSettings
from mlxcel.prefix_cache.stats import CacheCounters, CacheStats, make_stats
from mlxcel.prefix_cache.transfer import open_archive


class PagedLedger:
    """Blocks on demand: free ones first, then cold ones of the prefix cache.

    A prompt's full blocks are stored while they are being computed, so that rows with the same beginning wait for them and
    adopt them instead of computing them again. The rest follows when the row ends.
    """

    def __init__(
        self, model: ModelRunner, settings: CacheSettings, *, watermark: float, counters: CacheCounters,
        clock: Callable[[], float],
    ) -> None:
        info = model.info
        self.pool = BlockPool(info.block_count, info.block_tokens)
        self._fingerprint = info.fingerprint
        self._block_tokens = info.block_tokens
        self._spare_blocks = math.ceil(watermark * info.block_count)
        self._settings = settings
        self._counters = counters
        self._being_computed: dict[bytes, int] = {}  # digest of a prompt block -> row that computes it
        self._index = PrefixIndex(
            self.pool, settings, counters, block_bytes=info.block_tokens * info.bytes_per_token, clock=clock
        )
        self._archive = open_archive(settings, model, self.pool, self._index)

    def must_wait(self, row: Row) -> bool:
        notes = row.reuse
        if not self._being_computed or not self._reads(row) or not self._settings.partial_match:
            return False
        if notes.waits_for is not None and notes.waits_for in self._being_computed:
            return True
        notes.waits_for = None
        limit = reusable_blocks(len(row.tokens), self._block_tokens)
        self._extend_digests(row, limit)
        stored = shared = len(self._index.match(notes.digests[:limit], row.tokens))
        while shared < limit and notes.digests[shared] in self._being_computed:
            shared += 1
        if shared == stored or shared * self._block_tokens < self._settings.min_prefix_tokens:
            return False
        notes.waits_for = notes.digests[shared - 1]
        return True

    def open(self, row: Row, *, alone: bool) -> bool:
        spare = 0 if alone else self._spare_blocks
        needed = self._blocks_for(len(row.tokens) + 1)
        reusable = reusable_blocks(len(row.tokens), self._block_tokens) if self._reads(row) else 0
        if needed - reusable + spare > self.pool.free_count + self.pool.cold_count:
            return False
        adopted = self._adopt(row, reusable)
        missing = needed - len(adopted)
        if missing + spare > self.pool.free_count + self.pool.cold_count:
            self._index.release(adopted)
            return False
        row.blocks.extend(adopted)
        row.computed_tokens = len(adopted) * self._block_tokens
        row.room_tokens = row.computed_tokens
        self.grow(row, len(row.tokens) + 1)
        self._count_lookup(row)
        self._begin_publishing(row)
        return True

    def opened(self, row: Row) -> None:
        pass

    def grow(self, row: Row, tokens: int) -> bool:
        missing = self._blocks_for(tokens) - len(row.blocks)
        if missing > self.pool.free_count and not self._index.reclaim(missing):
            return False
        blocks = self.pool.allocate(max(0, missing))
        if blocks is None:
            return False
        row.blocks.extend(blocks)
        row.fresh_blocks += blocks
        row.room_tokens = len(row.blocks) * self._block_tokens
        return True

    def next_stop(self, row: Row) -> int:
        return len(row.tokens)

    def computed(self, row: Row) -> None:
        notes = row.reuse
        full_blocks = row.computed_tokens // self._block_tokens
        if notes.publishing and full_blocks > notes.stored_blocks:
            self._store(row, full_blocks, ends=False)
            if notes.stored_blocks < full_blocks:  # another row was first, or the cache is full of blocks in use
                self._end_publishing(row)

    def leave(self, row: Row, *, sound: bool) -> None:
        notes = row.reuse
        self._end_publishing(row)
        full_blocks = row.computed_tokens // self._block_tokens
        if sound and self._writes(row) and full_blocks * self._block_tokens >= self._settings.min_prefix_tokens:
            if self._index.fits(full_blocks):
                self._extend_digests(row, full_blocks)
                self._store(row, full_blocks, ends=True)
                self._index.limit_entries()
                if self._archive is not None:
                    self._archive.save(notes.digests[:full_blocks], row.tokens, row.blocks)
            else:
                self._index.reject_oversized()
        self._counters.inserts += notes.added
        notes.added = False
        notes.stored_blocks = 0
        self._index.release(row.blocks)
        row.blocks.clear()
        row.fresh_blocks = ()

    def known_blocks(self, row: Row) -> int:
        return self._blocks_for(row.computed_tokens)

    def usage(self) -> PoolUsage:
        pool = self.pool
        return PoolUsage(pool.block_count, pool.free_count, pool.cold_count, self._index.contents().entries)

    def close(self) -> None:
        if self._archive is not None:
            self._archive.close()

    def cache_stats(self) -> CacheStats:
        return make_stats(
            self._settings, self._counters, self._index.contents(), block_tokens=self._block_tokens,
            capacity_bytes=self._index.capacity_bytes, disk=self._archive.contents() if self._archive is not None else None,
        )

    def reset_cache(self) -> None:
        self._index.clear()
        if self._archive is not None:
            self._archive.clear()

    def check(self, rows: list[Row]) -> None:
        uses: dict[int, int] = {}
        for row in rows:
            for block in row.blocks:
                uses[block] = uses.get(block, 0) + 1
        self.pool.check(uses, self._index.stored_blocks())
        self._index.check()

    # ---- reuse ----------------------------------------------------------------------------------------------------

    def _reads(self, row: Row) -> bool:
        return self._settings.active and row.work.cache.read

    def _writes(self, row: Row) -> bool:
        return self._settings.active and row.work.cache.write

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)

    def _extend_digests(self, row: Row, block_count: int) -> None:
        digests = row.reuse.digests
        if len(digests) < block_count:
            root = root_digest(self._fingerprint, row.work.cache.namespace)
            extend_digests(digests, root, row.tokens, self._block_tokens, block_count)

    def _adopt(self, row: Row, limit: int) -> list[int]:
        """Take hold of the longest stored beginning of at most ``limit`` blocks, in memory and then on disk."""
        if not limit:
            return []
        self._index.expire()
        self._extend_digests(row, limit)
        digests = row.reuse.digests[:limit]
        blocks = self._index.match(digests, row.tokens)
        on_disk = self._archive.stored_run(digests, len(blocks)) if self._archive is not None else 0
        if not self._worthwhile(row, len(blocks) + on_disk):
            return []
        self.pool.share(blocks)
        if self._archive is not None and on_disk:
            self._archive.load(digests, row.tokens, blocks)
            if not self._worthwhile(row, len(blocks)):
                self._index.release(blocks)
                return []
        return blocks

    def _worthwhile(self, row: Row, block_count: int) -> bool:
        return adopted_blocks(block_count, len(row.tokens), self._block_tokens, self._settings.min_prefix_tokens) > 0

    def _count_lookup(self, row: Row) -> None:
        """A row counts once, when it opens for the first time."""
        if row.reuse.looked_up or not self._reads(row):
            return
        row.reuse.looked_up = True
        row.cached_tokens = row.computed_tokens
        self._counters.lookups += 1
        self._counters.hits += row.computed_tokens > 0
        self._counters.cached_tokens += row.computed_tokens

    def _begin_publishing(self, row: Row) -> None:
        notes = row.reuse
        full_blocks = len(row.tokens) // self._block_tokens
        adopted = notes.stored_blocks = row.computed_tokens // self._block_tokens
        if (
            full_blocks == adopted
            or not self._writes(row)
            or full_blocks * self._block_tokens < self._settings.min_prefix_tokens
            or not self._index.fits(full_blocks)
        ):
            return
        notes.publishing = True
        self._extend_digests(row, full_blocks)
        for digest in notes.digests[adopted:full_blocks]:
            self._being_computed.setdefault(digest, row.row_id)

    def _end_publishing(self, row: Row) -> None:
        if row.reuse.publishing:
            row.reuse.publishing = False
            self._forget_being_computed(row, row.reuse.digests)

    def _forget_being_computed(self, row: Row, digests: list[bytes]) -> None:
        for digest in digests:
            if self._being_computed.get(digest) == row.row_id:
                del self._being_computed[digest]

    def _store(self, row: Row, full_blocks: int, *, ends: bool) -> None:
        notes = row.reuse
        before = self._index.blocks_added
        start = notes.stored_blocks
        notes.stored_blocks = self._index.store(notes.digests[:full_blocks], row.tokens, row.blocks, start, ends=ends)
        notes.added |= self._index.blocks_added > before
        self._forget_being_computed(row, notes.digests[start:full_blocks])



"""Room and reuse for models with whole-row state (recurrent, hybrid, sliding window): snapshots instead of blocks."""

from __future__ import annotations

from collections.abc import Callable

from mlxcel.core.ports import ModelInfo, ModelRunner
from mlxcel.engine.sched.row import Row
from mlxcel.engine.stats import PoolUsage
from mlxcel.prefix_cache.blocks import BlockAccountingError
from mlxcel.prefix_cache.keys import root_digest
from mlxcel.prefix_cache.settings import CacheSettings
from mlxcel.prefix_cache.snapshots import SnapshotIndex
from mlxcel.prefix_cache.stats import CacheCounters, CacheStats, make_stats


class SnapshotLedger:
    """The runner itself makes room for a row, so there is always room here; what is kept are copies of whole states.

    A snapshot is taken at the boundaries that the work names, and when a row leaves in good order.
    """

    def __init__(
        self, model: ModelRunner, settings: CacheSettings, *, counters: CacheCounters, clock: Callable[[], float]
    ) -> None:
        self._model = model
        self._info: ModelInfo = model.info
        self._settings = settings
        self._counters = counters
        self._index = SnapshotIndex(settings, counters, drop=model.drop_snapshot, clock=clock)

    def must_wait(self, row: Row) -> bool:
        return False

    def open(self, row: Row, *, alone: bool) -> bool:
        row.room_tokens = self._info.context_tokens
        row.reuse.snapshot = None
        if not (self._settings.active and row.work.cache.read):
            return True
        found = self._index.match(self._root(row), row.tokens)
        if found is not None and found[1] >= self._settings.min_prefix_tokens:
            row.reuse.snapshot, row.computed_tokens = found
        if not row.reuse.looked_up:
            row.reuse.looked_up = True
            row.cached_tokens = row.computed_tokens
            self._counters.lookups += 1
            self._counters.hits += row.computed_tokens > 0
            self._counters.cached_tokens += row.computed_tokens
        return True

    def opened(self, row: Row) -> None:
        if row.reuse.snapshot is not None:
            self._model.restore(row.row_id, row.reuse.snapshot)
            row.reuse.snapshot = None

    def grow(self, row: Row, tokens: int) -> bool:
        return True

    def next_stop(self, row: Row) -> int:
        end = len(row.tokens)
        if self._writes(row):
            for boundary in row.work.cache.boundaries:
                if row.computed_tokens < boundary < end:
                    return boundary
        return end

    def computed(self, row: Row) -> None:
        if row.computed_tokens in row.work.cache.boundaries and not row.truncated:
            self._keep(row)

    def leave(self, row: Row, *, sound: bool) -> None:
        if sound:
            self._keep(row)
        self._counters.inserts += row.reuse.added
        row.reuse.added = False

    def known_blocks(self, row: Row) -> int:
        return 0

    def usage(self) -> PoolUsage:
        return PoolUsage(cache_entries=self._index.contents().entries)

    def close(self) -> None:
        pass

    def cache_stats(self) -> CacheStats:
        capacity_bytes = self._settings.snapshot_capacity_bytes
        return make_stats(
            self._settings, self._counters, self._index.contents(), block_tokens=self._info.block_tokens,
            capacity_bytes=-1 if capacity_bytes is None else capacity_bytes,
        )

    def reset_cache(self) -> None:
        self._index.clear()

    def check(self, rows: list[Row]) -> None:
        if any(row.blocks for row in rows):
            raise BlockAccountingError("a row holds blocks of a model that has none")

    def _writes(self, row: Row) -> bool:
        return self._settings.active and row.work.cache.write

    def _root(self, row: Row) -> bytes:
        return root_digest(self._info.fingerprint, row.work.cache.namespace)

    def _keep(self, row: Row) -> None:
        if not self._writes(row) or row.computed_tokens < self._settings.min_prefix_tokens:
            return
        root = self._root(row)
        token_ids = row.tokens[: row.computed_tokens]
        if self._index.has(root, token_ids):
            return
        state_bytes = self._info.state_bytes + len(token_ids) * self._info.bytes_per_token
        if not self._index.make_room(state_bytes):
            return
        handle = self._model.snapshot(row.row_id)
        while handle is None and self._index.evict():  # the runner is short of memory
            handle = self._model.snapshot(row.row_id)
        if handle is not None:
            self._index.add(root, token_ids, handle, state_bytes)
            row.reuse.added = True

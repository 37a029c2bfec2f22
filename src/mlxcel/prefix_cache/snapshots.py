"""Stored states of models whose state cannot be cut into blocks: whole snapshots, each good for exactly its own prefix."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from mlxcel.prefix_cache.keys import token_bytes
from mlxcel.prefix_cache.settings import CacheSettings
from mlxcel.prefix_cache.stats import CacheContents, CacheCounters


@dataclass(slots=True)
class _Snapshot:
    handle: int
    root: bytes
    tokens: int
    token_bytes: bytes
    state_bytes: int
    last_used_s: float


class SnapshotIndex:
    """Finds the longest snapshot that a prompt begins with. Owner thread only, except for :meth:`contents`.

    Args:
        drop: frees a snapshot in the runner.
        clock: monotonic seconds.
    """

    def __init__(
        self, settings: CacheSettings, counters: CacheCounters, *, drop: Callable[[int], None], clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._drop = drop
        self._clock = clock
        self._snapshots: OrderedDict[bytes, _Snapshot] = OrderedDict()  # least recently used first
        self._lengths: dict[bytes, dict[int, int]] = {}  # root -> length in tokens -> snapshots of that length
        self._bytes = 0

    def contents(self) -> CacheContents:
        """What is stored now. Safe to call from any thread."""
        return CacheContents(entries=len(self._snapshots), bytes=self._bytes)

    def match(self, root: bytes, token_ids: Sequence[int]) -> tuple[int, int] | None:
        """Handle and length of the longest snapshot of a proper prefix of ``token_ids``, marked as used; or None."""
        self._expire()
        words = token_bytes(token_ids)
        digest = sha256(root)
        found: _Snapshot | None = None
        done = 0
        for length in sorted(self._lengths.get(root, ())):
            if length >= len(token_ids):
                break
            digest.update(words[4 * done : 4 * length])
            done = length
            snapshot = self._snapshots.get(digest.copy().digest())
            if snapshot is not None and snapshot.token_bytes == words[: 4 * length]:
                found = snapshot
        if found is None:
            return None
        found.last_used_s = self._clock()
        self._snapshots.move_to_end(_key(root, found.token_bytes))
        return found.handle, found.tokens

    def has(self, root: bytes, token_ids: Sequence[int]) -> bool:
        """True when exactly this prefix is stored; marks it as used."""
        key = _key(root, token_bytes(token_ids))
        snapshot = self._snapshots.get(key)
        if snapshot is None:
            return False
        snapshot.last_used_s = self._clock()
        self._snapshots.move_to_end(key)
        return True

    def make_room(self, state_bytes: int) -> bool:
        """Give up old snapshots until one of ``state_bytes`` fits; False when it never can."""
        capacity_bytes = self._settings.snapshot_capacity_bytes
        if capacity_bytes is not None and state_bytes > capacity_bytes:
            self._counters.rejections_oversized += 1
            return False
        while self._snapshots and (
            len(self._snapshots) >= self._settings.snapshot_max_entries
            or (capacity_bytes is not None and self._bytes + state_bytes > capacity_bytes)
        ):
            self.evict()
        return True

    def add(self, root: bytes, token_ids: Sequence[int], handle: int, state_bytes: int) -> None:
        """Keep a snapshot that :meth:`make_room` was called for."""
        words = token_bytes(token_ids)
        self._snapshots[_key(root, words)] = _Snapshot(handle, root, len(token_ids), words, state_bytes, self._clock())
        lengths = self._lengths.setdefault(root, {})
        lengths[len(token_ids)] = lengths.get(len(token_ids), 0) + 1
        self._bytes += state_bytes

    def evict(self) -> bool:
        """Give up the least recently used snapshot; False when there is none."""
        if not self._snapshots:
            return False
        self._counters.evictions_lru += 1
        self._forget(next(iter(self._snapshots)))
        return True

    def clear(self) -> None:
        """Give up every snapshot."""
        for key in list(self._snapshots):
            self._forget(key)

    def _expire(self) -> None:
        limit_s = self._clock() - self._settings.snapshot_ttl_s
        while self._snapshots:
            key, snapshot = next(iter(self._snapshots.items()))
            if snapshot.last_used_s > limit_s:
                return
            self._counters.evictions_ttl += 1
            self._forget(key)

    def _forget(self, key: bytes) -> None:
        snapshot = self._snapshots.pop(key)
        self._bytes -= snapshot.state_bytes
        lengths = self._lengths[snapshot.root]
        lengths[snapshot.tokens] -= 1
        if not lengths[snapshot.tokens]:
            del lengths[snapshot.tokens]
            if not lengths:
                del self._lengths[snapshot.root]
        self._drop(snapshot.handle)


def _key(root: bytes, words: bytes) -> bytes:
    return sha256(root + words).digest()

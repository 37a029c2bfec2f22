"""What the prefix cache counts and reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mlxcel.prefix_cache.settings import CacheSettings


@dataclass(slots=True)
class CacheCounters:
    """Sums since the engine started.

    Attributes:
        lookups: works that were looked up, each once.
        hits: of these, the ones that reused something.
        cached_tokens: prompt tokens reused.
        inserts: works that left something new behind.
        evictions_lru: stored sequences given up for room.
        evictions_ttl: stored sequences given up for age.
        rejections_oversized: sequences larger than the whole cache.
    """

    lookups: int = 0
    hits: int = 0
    cached_tokens: int = 0
    inserts: int = 0
    evictions_lru: int = 0
    evictions_ttl: int = 0
    rejections_oversized: int = 0


@dataclass(frozen=True, slots=True)
class CacheContents:
    """What is stored now.

    Attributes:
        entries: stored sequences (sequences that are the beginning of a longer one are part of that).
        bytes: KV or state bytes they take, shared blocks counted once.
        blocks: blocks of all entries, shared blocks counted once per entry.
        unique_blocks: blocks stored.
    """

    entries: int = 0
    bytes: int = 0
    blocks: int = 0
    unique_blocks: int = 0


@dataclass(frozen=True, slots=True)
class DiskContents:
    """What the disk tier holds now and has done so far."""

    blocks: int = 0
    bytes: int = 0
    blocks_loaded: int = 0
    bytes_written: int = 0
    files_rejected: int = 0


@dataclass(frozen=True, slots=True)
class CacheStats:
    """The documented statistics, in their documented order; extras follow."""

    enabled: bool
    apc_enabled: bool
    block_size: int
    hash: str
    entries: int
    bytes: int
    capacity_bytes: int
    max_entries: int
    hits: int
    lookups: int
    hit_rate: float
    inserts: int
    evictions_lru: int
    evictions_ttl: int
    rejections_oversized: int
    total_blocks_stored: int
    unique_block_hashes: int
    apc_active_entries: int
    cached_tokens: int
    disk_blocks: int
    disk_bytes: int
    disk_blocks_loaded: int
    disk_bytes_written: int
    disk_files_rejected: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def make_stats(
    settings: CacheSettings, counters: CacheCounters, contents: CacheContents, *, block_tokens: int, capacity_bytes: int,
    disk: DiskContents | None = None,
) -> CacheStats:
    """Put the statistics together; a cache that is switched off reports zeros. ``capacity_bytes`` -1 is no limit."""
    if not settings.active:
        counters, contents = CacheCounters(), CacheContents()
    disk = disk if disk is not None else DiskContents()
    partial = settings.active and settings.partial_match
    return CacheStats(
        enabled=settings.active,
        apc_enabled=partial,
        block_size=block_tokens,
        hash="sha256",
        entries=contents.entries,
        bytes=contents.bytes,
        capacity_bytes=capacity_bytes if settings.active else 0,
        max_entries=settings.max_entries if settings.active else 0,
        hits=counters.hits,
        lookups=counters.lookups,
        hit_rate=counters.hits / counters.lookups if counters.lookups else 0.0,
        inserts=counters.inserts,
        evictions_lru=counters.evictions_lru,
        evictions_ttl=counters.evictions_ttl,
        rejections_oversized=counters.rejections_oversized,
        total_blocks_stored=contents.blocks,
        unique_block_hashes=contents.unique_blocks,
        apc_active_entries=contents.entries if partial else 0,
        cached_tokens=counters.cached_tokens,
        disk_blocks=disk.blocks,
        disk_bytes=disk.bytes,
        disk_blocks_loaded=disk.blocks_loaded,
        disk_bytes_written=disk.bytes_written,
        disk_files_rejected=disk.files_rejected,
    )

"""Settings of the prefix cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """
    Attributes:
        enabled: False keeps nothing and answers with the disabled statistics.
        capacity_bytes: KV bytes that stored prefixes may hold; None no limit besides the pool, 0 disables.
        max_entries: stored sequences; the least recently used goes first.
        ttl_s: seconds after its last use that a stored prefix is dropped.
        min_prefix_tokens: shorter prefixes are neither stored nor reused.
        partial_match: reuse the common part of a stored sequence ("APC"); False reuses a stored sequence only as a whole.
        directory: where blocks are kept over a restart; None nowhere.
        directory_capacity_bytes: file bytes kept there.
        snapshot_capacity_bytes: bytes of whole-state snapshots (recurrent and hybrid models); None no limit.
        snapshot_max_entries: snapshots kept.
        snapshot_ttl_s: seconds after its last use that a snapshot is dropped.
    """

    enabled: bool = True
    capacity_bytes: int | None = None
    max_entries: int = 1024
    ttl_s: float = 3600.0
    min_prefix_tokens: int = 32
    partial_match: bool = True
    directory: Path | None = None
    directory_capacity_bytes: int = 8 * 1024 * 1024 * 1024
    snapshot_capacity_bytes: int | None = 512 * 1024 * 1024
    snapshot_max_entries: int = 4096
    snapshot_ttl_s: float = 7200.0

    @property
    def active(self) -> bool:
        return self.enabled and self.capacity_bytes != 0

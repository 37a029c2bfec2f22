"""Counters of one engine. The owner thread writes them; any thread may read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from mlxcel.prefix_cache.stats import CacheCounters

SlotState = Literal["idle", "prefill", "decoding", "queued"]


@dataclass(slots=True)
class EngineCounters:
    """Sums since the engine started; they survive a sleep of the model.

    Attributes:
        sequences_started: works whose prefill began.
        sequences_completed: works that ended after they had begun.
        prefill_tokens: prompt tokens computed (not those taken from the cache).
        decode_tokens: tokens generated.
        decode_steps: steps in which at least one row decoded.
        prefill_chunks: prompt pieces computed.
        mixed_steps: steps with both.
        preemptions: rows that had to give up their slot or their blocks.
        device_faults: steps that failed as a whole.
        drafted_tokens: tokens proposed by the drafter.
        accepted_tokens: of those, the ones that were right.
        drafted_works: finished works that had at least one proposal.
        cache: those of the prefix cache.
    """

    sequences_started: int = 0
    sequences_completed: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    decode_steps: int = 0
    prefill_chunks: int = 0
    mixed_steps: int = 0
    preemptions: int = 0
    device_faults: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drafted_works: int = 0
    cache: CacheCounters = field(default_factory=CacheCounters)


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """KV blocks of the model and entries of its prefix cache, now."""

    blocks: int = 0
    free_blocks: int = 0
    cold_blocks: int = 0  # held by the prefix cache alone
    cache_entries: int = 0


@dataclass(frozen=True, slots=True)
class Drafting:
    """The drafter, now; see :class:`EngineStats`."""

    kind: str | None = None
    tokens: int = 0
    pays: bool = False


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """One slot, or (after the slots) one queued work. ``work_id`` is None for an idle slot."""

    id: int
    state: SlotState
    work_id: str | None = None
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for health, metrics and slots. Queue and batch figures are of now, the rest are sums.

    Attributes:
        draft_kind: what drafts; None when nothing does.
        draft_tokens: most tokens of one proposal.
        drafting_pays: drafting is worth its time for a single row, as far as was measured.
    """

    active_sequences: int
    queue_depth: int
    max_batch_size: int
    sequences_started: int
    sequences_completed: int
    total_prefill_tokens: int
    total_decode_tokens: int
    decode_steps_processed: int
    prefill_chunks_processed: int
    current_batch_size: int
    cache_pool_active: int
    mixed_steps: int
    preemptions: int
    device_faults: int
    drafted_tokens: int
    accepted_tokens: int
    drafted_works: int
    draft_kind: str | None
    draft_tokens: int
    drafting_pays: bool
    kv_blocks: int
    kv_blocks_free: int
    kv_blocks_cached: int
    slots: tuple[SlotStatus, ...]


def make_stats(
    counters: EngineCounters, slots: Sequence[SlotStatus], *, queued: Sequence[SlotStatus] = (), batch_rows: int = 0,
    pool: PoolUsage | None = None, drafting: Drafting | None = None,
) -> EngineStats:
    """Put a snapshot together from its sources."""
    usage = pool if pool is not None else PoolUsage()
    drafts = drafting if drafting is not None else Drafting()
    return EngineStats(
        active_sequences=sum(slot.state != "idle" for slot in slots),
        queue_depth=len(queued),
        max_batch_size=len(slots),
        sequences_started=counters.sequences_started,
        sequences_completed=counters.sequences_completed,
        total_prefill_tokens=counters.prefill_tokens,
        total_decode_tokens=counters.decode_tokens,
        decode_steps_processed=counters.decode_steps,
        prefill_chunks_processed=counters.prefill_chunks,
        current_batch_size=batch_rows,
        cache_pool_active=usage.cache_entries,
        mixed_steps=counters.mixed_steps,
        preemptions=counters.preemptions,
        device_faults=counters.device_faults,
        drafted_tokens=counters.drafted_tokens,
        accepted_tokens=counters.accepted_tokens,
        drafted_works=counters.drafted_works,
        draft_kind=drafts.kind,
        draft_tokens=drafts.tokens,
        drafting_pays=drafts.pays,
        kv_blocks=usage.blocks,
        kv_blocks_free=usage.free_blocks,
        kv_blocks_cached=usage.cold_blocks,
        slots=(*slots, *queued),
    )

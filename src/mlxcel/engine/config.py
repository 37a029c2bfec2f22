"""Settings of one engine. Ranges are checked by the command line; the values here are usable as they are."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlxcel.prefix_cache.settings import CacheSettings


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """
    Attributes:
        max_rows: works that run at once (slots); the runner's own limit applies too.
        max_queue_depth: works that may wait beyond those; more are refused.
        context_tokens_per_slot: window of one work; 0 the model's own.
        prefill_chunk_tokens: prompt tokens of one step while nothing decodes; 0 whole prompts.
        prefill_grant_interval: N; while rows decode, the oldest waiting prompt advances by at least one chunk (counted as
            at most ``policy.SHARED_CHUNK_TOKENS``) in N + 1 steps. 0 leaves its share to the time rule alone.
        max_batch_prefill: prompts that one step may advance.
        max_batch_prefill_tokens: prompt tokens of one step that several prompts share; 0 no limit besides the chunk.
        kv_admission_watermark: share of the KV blocks that an admission leaves free while others run, 0 to 0.5.
        enable_preemption: a waiting work may take the slot of a running one of strictly lower priority.
        decode_timeout_s: a work whose next token takes longer than this fails.
        context_shift: when the window is full, drop the middle of the context and go on, instead of ending the work.
        request_memory_budget_bytes: KV bytes the worst case of one work may need; None the size of the pool.
        prompt_lookup: propose tokens by prompt lookup, where the runner can verify them; None only where it verifies them
            to the bit. A draft model takes its place.
        draft_tokens: most tokens of one proposal; 0 is the drafter's own choice.
        sleep_idle_s: quiet seconds after which the model is freed; None never.
        cache: the prefix cache.
        check_invariants: check the block accounting whenever the engine is idle (tests, debug builds).
    """

    max_rows: int = 4
    max_queue_depth: int = 32
    context_tokens_per_slot: int = 0
    prefill_chunk_tokens: int = 2048
    prefill_grant_interval: int = 16
    max_batch_prefill: int = 4
    max_batch_prefill_tokens: int = 4096
    kv_admission_watermark: float = 0.01
    enable_preemption: bool = False
    decode_timeout_s: float = 600.0
    context_shift: bool = False
    request_memory_budget_bytes: int | None = None
    prompt_lookup: bool | None = False
    draft_tokens: int = 0
    sleep_idle_s: float | None = None
    cache: CacheSettings = field(default_factory=CacheSettings)
    check_invariants: bool = False

"""Options of batching, memory and the prompt cache."""

from __future__ import annotations

from dataclasses import dataclass

from mlxcel.config.option import option, parse_bytes, parse_float, parse_int, switch
from mlxcel.config.values import parse_budget_bytes


@dataclass(frozen=True, slots=True)
class SchedulingConfig:
    """Batching and scheduling"""

    ctx_size: int = option(
        0,
        "-c",
        "--ctx-size",
        env="LLAMA_ARG_CTX_SIZE",
        parse=parse_int(0),
        metavar="N",
        help="context tokens over all slots (0: the model's own)",
    )
    parallel: int = option(
        -1,
        "-np",
        "--parallel",
        "--n-parallel",
        env="LLAMA_ARG_N_PARALLEL",
        parse=parse_int(-1, 1024),
        metavar="N",
        help="slots (-1: 4)",
    )
    max_batch_size: int = option(
        0, "--max-batch-size", parse=parse_int(0, 1024), metavar="N", help="rows decoded together (0: as many as slots)"
    )
    no_batch: bool = switch(False, "--no-batch", help="one request at a time")
    max_queue_depth: int = option(
        32, "--max-queue-depth", env="MLXCEL_MAX_QUEUE_DEPTH", parse=parse_int(0), metavar="N", help="requests that may wait"
    )
    prefill_chunk_size: int = option(
        2048,
        "-b",
        "--prefill-chunk-size",
        "--batch-size",
        env=("MLXCEL_PREFILL_CHUNK", "LLAMA_ARG_BATCH", "LLAMA_ARG_BATCH_SIZE"),
        parse=parse_int(0),
        metavar="N",
        help="prompt tokens in one prefill piece (0: whole prompts)",
    )
    prefill_grant_interval: int = option(
        16,
        "--prefill-grant-interval",
        env="MLXCEL_PREFILL_GRANT_INTERVAL",
        parse=parse_int(0),
        metavar="N",
        help="decode steps within which a waiting prompt gets one piece (0: only when nothing decodes)",
    )
    max_batch_prefill: int = option(
        4,
        "--max-batch-prefill",
        env="MLXCEL_MAX_BATCH_PREFILL",
        parse=parse_int(1),
        metavar="N",
        help="prompts prefilled in one step",
    )
    max_batch_prefill_tokens: int = option(
        -1,
        "--max-batch-prefill-tokens",
        env="MLXCEL_MAX_BATCH_PREFILL_TOKENS",
        parse=parse_int(-1),
        metavar="N",
        help="bound of rows x longest prompt in one step (-1: derived, 0: off)",
    )
    kv_cache_budget: str = option(
        "auto",
        "--kv-cache-budget",
        env="MLXCEL_KV_CACHE_BUDGET",
        parse=parse_budget_bytes,
        metavar="SIZE",
        help="KV pool: auto, none or a size",
    )
    request_memory_budget_bytes: int = option(
        0,
        "--request-memory-budget",
        env="MLXCEL_REQUEST_MEMORY_BUDGET",
        parse=parse_bytes,
        metavar="SIZE",
        help="KV memory that the worst case of one request may need; more is refused with 503 (0: the whole pool)",
    )
    kv_admission_watermark: float = option(
        0.01,
        "--kv-admission-watermark",
        env="MLXCEL_KV_ADMISSION_WATERMARK",
        parse=parse_float(0, 0.5),
        metavar="F",
        help="part of the KV pool kept free at admission while rows decode",
    )
    kv_unified: bool | None = switch(
        None,
        "-kvu",
        "--kv-unified",
        env="LLAMA_ARG_KV_UNIFIED",
        off=("--no-kv-unified",),
        off_env=("LLAMA_ARG_NO_KV_UNIFIED",),
        help="every slot may use the whole window (default when --parallel is auto)",
    )
    enable_preemption: bool = switch(
        False, "--enable-preemption", env="MLXCEL_ENABLE_PREEMPTION", help="a higher priority may evict a lower one"
    )
    decode_timeout_s: float = option(
        600.0,
        "--decode-timeout",
        env="MLXCEL_DECODE_TIMEOUT",
        parse=parse_float(0),
        metavar="S",
        help="seconds without a new token before a decoding request is ended (0: 300)",
    )
    context_shift: bool = switch(
        False,
        "--context-shift",
        env="LLAMA_ARG_CONTEXT_SHIFT",
        off=("--no-context-shift",),
        off_env=("LLAMA_ARG_NO_CONTEXT_SHIFT",),
        help="drop the oldest tokens when the window is full",
    )
    keep_tokens: int = option(
        0, "--keep", parse=parse_int(-1), metavar="N", help="prompt tokens that context shift keeps (-1: all)"
    )
    cache_type_k: str = option(
        "f16",
        "-ctk",
        "--cache-type-k",
        env="LLAMA_ARG_CACHE_TYPE_K",
        choices=("f16", "fp16", "bf16", "fp32", "int8"),
        help="type of cached keys",
    )
    cache_type_v: str = option(
        "f16",
        "-ctv",
        "--cache-type-v",
        env="LLAMA_ARG_CACHE_TYPE_V",
        choices=("f16", "fp16", "bf16", "fp32", "int8"),
        help="type of cached values",
    )
    warmup: bool = switch(True, "--warmup", off=("--no-warmup",), help="run one empty step before serving")
    sleep_idle_s: int = option(
        -1,
        "--sleep-idle-seconds",
        parse=parse_int(-1),
        metavar="S",
        help="free the model after so many idle seconds (-1: never)",
    )


@dataclass(frozen=True, slots=True)
class PromptCacheConfig:
    """Prompt cache"""

    enabled: bool = switch(
        True,
        "--prompt-cache-enabled",
        "--cache-prompt",
        env=("MLXCEL_PROMPT_CACHE_ENABLED", "LLAMA_ARG_CACHE_PROMPT"),
        off=("--no-prompt-cache", "--no-cache-prompt"),
        off_env=("LLAMA_ARG_NO_CACHE_PROMPT",),
        help="reuse the KV state of equal prompt prefixes",
    )
    capacity_bytes: int = option(
        -1,
        "--prompt-cache-capacity-bytes",
        env="MLXCEL_PROMPT_CACHE_CAPACITY_BYTES",
        parse=parse_bytes,
        metavar="SIZE",
        help="bytes the cache may hold (default: derived from the model and the memory)",
    )
    max_entries: int = option(
        1024,
        "--prompt-cache-max-entries",
        env="MLXCEL_PROMPT_CACHE_MAX_ENTRIES",
        parse=parse_int(0),
        metavar="N",
        help="cached prompts kept",
    )
    ttl_s: float = option(
        3600.0,
        "--prompt-cache-ttl",
        env="MLXCEL_PROMPT_CACHE_TTL",
        parse=parse_float(0),
        metavar="S",
        help="seconds an unused entry lives",
    )
    min_prefix_tokens: int = option(
        32,
        "--prompt-cache-min-prefix",
        env="MLXCEL_PROMPT_CACHE_MIN_PREFIX",
        parse=parse_int(1),
        metavar="N",
        help="shortest prefix worth reusing, in tokens",
    )
    snapshot_capacity_bytes: int = option(
        512 * 2**20,
        "--prompt-cache-snapshot-capacity-bytes",
        env="MLXCEL_PROMPT_CACHE_SNAPSHOT_CAPACITY_BYTES",
        parse=parse_bytes,
        metavar="SIZE",
        help="bytes of state snapshots (recurrent and hybrid models)",
    )
    snapshot_max_entries: int = option(
        4096,
        "--prompt-cache-snapshot-max-entries",
        env="MLXCEL_PROMPT_CACHE_SNAPSHOT_MAX_ENTRIES",
        parse=parse_int(0),
        metavar="N",
        help="state snapshots kept",
    )
    snapshot_ttl_s: float = option(
        7200.0,
        "--prompt-cache-snapshot-ttl",
        env="MLXCEL_PROMPT_CACHE_SNAPSHOT_TTL",
        parse=parse_float(0),
        metavar="S",
        help="seconds an unused snapshot lives",
    )
    apc_enabled: bool = switch(
        True,
        "--apc-enabled",
        env="APC_ENABLED",
        off=("--no-apc",),
        help="reuse partial prefixes in blocks, not only whole entries",
    )
    directory: str = option(
        "",
        "--prompt-cache-dir",
        env="MLXCEL_PROMPT_CACHE_DIR",
        metavar="DIR",
        help="keep cached prefixes on disk across restarts",
    )
    directory_bytes: int = option(
        4 * 2**30,
        "--prompt-cache-dir-bytes",
        env="MLXCEL_PROMPT_CACHE_DIR_BYTES",
        parse=parse_bytes,
        metavar="SIZE",
        help="bytes the disk tier may hold",
    )
    share_across_keys: bool = switch(
        False, "--prompt-cache-share", env="MLXCEL_PROMPT_CACHE_SHARE", help="share cached prefixes between API keys"
    )

"""Options of ``mlxcel-server``, grouped as the help shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mlxcel.config.option import many, option, parse_bytes, parse_float, parse_int, switch
from mlxcel.config.sampling import SamplingConfig
from mlxcel.config.stores import StoresConfig
from mlxcel.config.values import parse_budget_bytes, parse_json_object


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Model"""

    model: str = option(
        "",
        "-m",
        "--model",
        env="LLAMA_ARG_MODEL",
        metavar="M",
        help="checkpoint folder, .gguf file, owner/name or smollm2-135m",
    )
    hf_repo: str = option(
        "", "-hf", "-hfr", "--hf-repo", env="LLAMA_ARG_HF_REPO", metavar="REPO", help="hub repository; wins over --model"
    )
    hf_token: str = option(
        "", "--hf-token", env=("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"), metavar="T", help="hub access token"
    )
    offline: bool = switch(False, "--offline", env="LLAMA_ARG_OFFLINE", help="never touch the network for a model")
    revision: str = option("main", "--revision", metavar="REV", help="hub revision")
    alias: str = option(
        "",
        "-a",
        "--alias",
        env="LLAMA_ARG_ALIAS",
        metavar="NAMES",
        help="comma list of model names; the first (sorted) is shown",
    )
    store_root: str = option(
        "",
        "--model-store-root",
        env=("MLXCEL_MODELS_DIR", "MLXCEL_CACHE_DIR"),
        metavar="DIR",
        help="where downloads are kept (default ~/.cache/mlxcel/models)",
    )
    device: str = option(
        "auto",
        "--device",
        "-dev",
        env=("MLXCEL_DEVICE", "LLAMA_ARG_DEVICE"),
        choices=("auto", "cpu", "cuda", "mps"),
        help="compute device",
    )
    dtype: str = option("auto", "--dtype", env="MLXCEL_DTYPE", choices=("auto", "fp32", "bf16", "fp16"), help="compute type")
    threads: int = option(
        0,
        "-t",
        "--threads",
        env="LLAMA_ARG_THREADS",
        parse=parse_int(-1, 1024),
        metavar="N",
        help="CPU threads (0: all cores)",
    )
    backend: str = option(
        "auto",
        "--backend",
        env="MLXCEL_BACKEND",
        choices=("auto", "native", "transformers"),
        help="which decoder runs the model",
    )
    trust_remote_code: bool = switch(
        False, "--trust-remote-code", env="MLXCEL_TRUST_REMOTE_CODE", help="run Python code that a checkpoint carries"
    )


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Network"""

    host: str = option(
        "127.0.0.1",
        "--host",
        env="LLAMA_ARG_HOST",
        metavar="HOST",
        help="address to bind; a name ending in .sock is a Unix socket",
    )
    port: int = option(
        8080,
        "--port",
        env="LLAMA_ARG_PORT",
        parse=parse_int(0, 65535),
        metavar="PORT",
        help="port to bind (0: any free one)",
    )
    api_keys: tuple[str, ...] = many(
        "--api-key", env=("LLAMA_API_KEY", "MLXCEL_API_KEY"), metavar="KEY", help="key that clients must send; repeatable"
    )
    api_key_file: str = option(
        "", "--api-key-file", env="LLAMA_ARG_API_KEY_FILE", metavar="FILE", help="file with one more key a line"
    )
    api_prefix: str = option(
        "", "--api-prefix", env="LLAMA_ARG_API_PREFIX", metavar="PATH", help="path before every route, such as /llm"
    )
    ssl_cert_file: str = option(
        "", "--ssl-cert-file", env="LLAMA_ARG_SSL_CERT_FILE", metavar="FILE", help="TLS certificate (PEM)"
    )
    ssl_key_file: str = option("", "--ssl-key-file", env="LLAMA_ARG_SSL_KEY_FILE", metavar="FILE", help="TLS key (PEM)")
    cors_origins: tuple[str, ...] = many(
        "--cors-origins",
        "--allowed-origins",
        env=("LLAMA_ARG_CORS_ORIGINS", "MLXCEL_ALLOWED_ORIGINS"),
        metavar="ORIGINS",
        help="web origins that may call, * for any (default: pages from this machine only)",
    )
    cors_methods: str = option(
        "GET, POST, DELETE, OPTIONS",
        "--cors-methods",
        env="LLAMA_ARG_CORS_METHODS",
        metavar="METHODS",
        help="methods told to browsers",
    )
    cors_headers: str = option(
        "*", "--cors-headers", env="LLAMA_ARG_CORS_HEADERS", metavar="HEADERS", help="request headers told to browsers"
    )
    cors_credentials: bool = switch(
        True,
        "--cors-credentials",
        env="LLAMA_ARG_CORS_CREDENTIALS",
        off=("--no-cors-credentials",),
        help="browsers may send credentials (never together with the origin *)",
    )
    reuse_port: bool = switch(False, "--reuse-port", env="LLAMA_ARG_REUSE_PORT", help="share the port with other processes")
    timeout_s: int = option(
        3600,
        "-to",
        "--timeout",
        env="LLAMA_ARG_TIMEOUT",
        parse=parse_int(1),
        metavar="S",
        help="socket read and write timeout in seconds",
    )
    sse_ping_interval_s: float = option(
        5.0,
        "--sse-ping-interval",
        env="LLAMA_ARG_SSE_PING_INTERVAL",
        parse=parse_float(-1, 3600),
        metavar="S",
        help="seconds of silence on a stream before a keep-alive (-1: none)",
    )
    max_body_bytes: int = option(
        64 * 2**20,
        "--max-body-bytes",
        env="MLXCEL_MAX_BODY_BYTES",
        parse=parse_bytes,
        metavar="SIZE",
        help="largest request body",
    )
    compat: str = option(
        "strict",
        "--compat",
        env="MLXCEL_COMPAT",
        choices=("strict", "lenient"),
        help="the reference's letter, or what clients need",
    )


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


@dataclass(frozen=True, slots=True)
class TemplateConfig:
    """Chat template, tools and reasoning"""

    template: str = option(
        "",
        "--chat-template",
        env="LLAMA_ARG_CHAT_TEMPLATE",
        metavar="TEXT",
        help="Jinja source that replaces the checkpoint's template",
    )
    template_file: str = option(
        "", "--chat-template-file", env="LLAMA_ARG_CHAT_TEMPLATE_FILE", metavar="FILE", help="file with a chat template"
    )
    template_kwargs: dict[str, Any] = field(
        default_factory=dict,
        metadata=option(
            None,
            "--chat-template-kwargs",
            env="LLAMA_ARG_CHAT_TEMPLATE_KWARGS",
            parse=parse_json_object,
            metavar="JSON",
            help="default template variables; a request's own win",
        ).metadata,
    )
    tool_call_parser: str = option(
        "",
        "--tool-call-parser",
        env="MLXCEL_TOOL_CALL_PARSER",
        metavar="NAME",
        help="tool-call format (default: told from the template)",
    )
    skip_chat_parsing: bool = switch(
        False,
        "--skip-chat-parsing",
        env="LLAMA_ARG_SKIP_CHAT_PARSING",
        off=("--no-skip-chat-parsing",),
        help="return the model's text verbatim, without reasoning and tool calls",
    )
    prefill_assistant: bool = switch(
        True,
        "--prefill-assistant",
        env="LLAMA_ARG_PREFILL_ASSISTANT",
        off=("--no-prefill-assistant",),
        off_env=("LLAMA_ARG_NO_PREFILL_ASSISTANT",),
        help="continue a trailing assistant message",
    )
    reasoning: str = option(
        "auto",
        "-rea",
        "--reasoning",
        env="LLAMA_ARG_REASONING",
        choices=("on", "off", "auto"),
        help="thinking of models that can",
    )
    reasoning_format: str = option(
        "auto",
        "--reasoning-format",
        env="LLAMA_ARG_THINK",
        choices=("none", "deepseek", "deepseek-legacy", "auto"),
        help="where thoughts go: reasoning_content (deepseek, auto), the content (none) or both",
    )
    reasoning_effort: str = option(
        "",
        "--reasoning-effort",
        env="LLAMA_ARG_REASONING_EFFORT",
        metavar="WORD",
        help="default effort given to the template",
    )
    reasoning_budget_tokens: int = option(
        -1,
        "--reasoning-budget",
        env=("LLAMA_ARG_THINK_BUDGET", "LLAMA_ARG_REASONING_BUDGET"),
        parse=parse_int(-1),
        metavar="N",
        help="thinking tokens (-1: unlimited, 0: none)",
    )
    reasoning_budget_message: str = option(
        "",
        "--reasoning-budget-message",
        env="LLAMA_ARG_THINK_BUDGET_MESSAGE",
        metavar="TEXT",
        help="text put before the forced end of a thinking block",
    )
    reasoning_alias_field: str = option(
        "reasoning",
        "--reasoning-alias-field",
        env="MLXCEL_REASONING_ALIAS_FIELD",
        choices=("none", "reasoning"),
        help="second field that repeats reasoning_content",
    )


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """Optional endpoints"""

    metrics: bool = switch(False, "--metrics", env="LLAMA_ARG_ENDPOINT_METRICS", help="serve GET /metrics")
    metrics_port: int = option(
        0,
        "--metrics-port",
        env="MLXCEL_METRICS_PORT",
        parse=parse_int(0, 65535),
        metavar="PORT",
        help="serve GET /metrics on a port of its own, without a key, on the same host (0: none)",
    )
    props: bool = switch(False, "--props", env="LLAMA_ARG_ENDPOINT_PROPS", help="serve POST /props")
    slots: bool = switch(
        True,
        "--slots",
        env="LLAMA_ARG_ENDPOINT_SLOTS",
        off=("--no-slots",),
        off_env=("LLAMA_ARG_NO_ENDPOINT_SLOTS",),
        help="serve GET /slots",
    )


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Logging"""

    verbosity: int = option(
        3,
        "-lv",
        "--verbosity",
        "--log-verbosity",
        env="LLAMA_ARG_LOG_VERBOSITY",
        parse=parse_int(0, 9),
        metavar="N",
        help="0-1 errors, 2 warnings, 3 info, 4 debug, 5 trace",
    )
    verbose: bool = switch(False, "-v", "--verbose", "--log-verbose", env="LLAMA_ARG_LOG_VERBOSE", help="log everything")
    file: str = option(
        "", "--log-file", env=("LLAMA_ARG_LOG_FILE", "LLAMA_LOG_FILE"), metavar="FILE", help="also write the log here (0600)"
    )
    disabled: bool = switch(False, "--log-disable", help="write no log")
    colors: str = option(
        "auto", "--log-colors", env="LLAMA_ARG_LOG_COLORS", choices=("auto", "on", "off"), help="colours in the log"
    )


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything ``mlxcel-server`` was told."""

    model: ModelConfig = field(default_factory=ModelConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    scheduling: SchedulingConfig = field(default_factory=SchedulingConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    prompt_cache: PromptCacheConfig = field(default_factory=PromptCacheConfig)
    template: TemplateConfig = field(default_factory=TemplateConfig)
    stores: StoresConfig = field(default_factory=StoresConfig)
    endpoints: EndpointConfig = field(default_factory=EndpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    given: frozenset[str] = frozenset()  # "group.field" of every value that was set, not defaulted

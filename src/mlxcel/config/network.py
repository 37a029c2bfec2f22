"""Options of the web server and its optional endpoints."""

from __future__ import annotations

from dataclasses import dataclass

from mlxcel.config.option import many, option, parse_bytes, parse_float, parse_int, switch


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
    slot_save_path: str = option(
        "",
        "--slot-save-path",
        env="LLAMA_ARG_SLOT_SAVE_PATH",
        metavar="DIR",
        help="existing folder for POST /slots/{id}?action=save and restore",
    )
    slots: bool = switch(
        True,
        "--slots",
        env="LLAMA_ARG_ENDPOINT_SLOTS",
        off=("--no-slots",),
        off_env=("LLAMA_ARG_NO_ENDPOINT_SLOTS",),
        help="serve GET /slots",
    )

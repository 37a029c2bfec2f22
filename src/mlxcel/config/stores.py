"""Options of the in-memory stores."""

from __future__ import annotations

from dataclasses import dataclass

from mlxcel.config.option import option, parse_bytes, parse_int

_HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class StoresConfig:
    """Stored responses, conversations and thinking text"""

    responses_max_entries: int = option(
        1024,
        "--responses-store-max-entries",
        env="LLAMA_ARG_RESPONSES_STORE_MAX_ENTRIES",
        parse=parse_int(0),
        metavar="N",
        help="stored responses (0: none are stored, and the routes that need one answer 400)",
    )
    responses_max_bytes: int = option(
        256 * 2**20,
        "--responses-store-max-bytes",
        env="MLXCEL_RESPONSES_STORE_MAX_BYTES",
        parse=parse_bytes,
        metavar="SIZE",
        help="memory of all stored responses (0: each is dropped at once)",
    )
    responses_ttl_s: int = option(
        _HOUR_S,
        "--responses-store-ttl-secs",
        env="LLAMA_ARG_RESPONSES_STORE_TTL_SECS",
        parse=parse_int(0),
        metavar="S",
        help="seconds until a stored response expires (0: never)",
    )
    conversations_max_entries: int = option(
        256,
        "--conversation-store-max-entries",
        env="LLAMA_ARG_CONVERSATION_STORE_MAX_ENTRIES",
        parse=parse_int(0),
        metavar="N",
        help="stored conversations (0: none, and requests that name one answer 400)",
    )
    conversations_max_bytes: int = option(
        64 * 2**20,
        "--conversation-store-max-bytes",
        env="MLXCEL_CONVERSATION_STORE_MAX_BYTES",
        parse=parse_bytes,
        metavar="SIZE",
        help="memory of all stored conversations (0: each is dropped at once)",
    )
    conversations_ttl_s: int = option(
        _HOUR_S,
        "--conversation-store-ttl-secs",
        env="LLAMA_ARG_CONVERSATION_STORE_TTL_SECS",
        parse=parse_int(0),
        metavar="S",
        help="seconds until an unused conversation expires (0: never)",
    )
    reasoning_echo_max_bytes: int = option(
        16 * 2**20,
        "--reasoning-echo-max-bytes",
        env="MLXCEL_REASONING_ECHO_MAX_BYTES",
        parse=parse_bytes,
        metavar="SIZE",
        help="memory for thinking text that is given back to clients' histories on /v1/messages (0: off)",
    )

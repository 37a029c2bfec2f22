"""Keys of stored prefixes: a chain of SHA-256 digests, one per full block of tokens.

The digest of a block covers everything before it, so that two equal digests mean two equal prefixes. The chain starts from
the model's fingerprint and the namespace: nothing is found across tenants, adapters, templates or models. Tokens are
compared as well before anything is reused; a digest alone is never trusted.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256

KEY_VERSION = b"mlxcel-prefix-1"


def root_digest(fingerprint: str, namespace: str) -> bytes:
    """Where the chain of a namespace starts."""
    parts = (fingerprint.encode(), namespace.encode())
    return sha256(KEY_VERSION + b"".join(len(part).to_bytes(4, "little") + part for part in parts)).digest()


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Token ids as little 32-bit words of this machine."""
    return array("I", token_ids).tobytes()


def extend_digests(digests: list[bytes], root: bytes, token_ids: Sequence[int], block_tokens: int, block_count: int) -> None:
    """Extend ``digests`` in place until it covers ``block_count`` full blocks of ``token_ids``."""
    parent = digests[-1] if digests else root
    for start in range(len(digests) * block_tokens, block_count * block_tokens, block_tokens):
        parent = sha256(parent + token_bytes(token_ids[start : start + block_tokens])).digest()
        digests.append(parent)

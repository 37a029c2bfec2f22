"""KV blocks as bytes, for a cache outside the pool: all layers in order, keys before values, in the pool's own dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from mlxcel.runners.generate.decoder.attention import PagedKeysValues


def export_block(caches: Sequence[PagedKeysValues], block: int) -> bytes:
    """Keys and values of one block."""
    parts = [part.flatten().view(torch.uint8) for part in _parts(caches, block)]
    return torch.cat(parts).cpu().numpy().tobytes()


def import_block(caches: Sequence[PagedKeysValues], block: int, data: bytes) -> None:
    """Fill a block from :func:`export_block`. Raises ValueError, before anything is changed, when the size is wrong."""
    parts = list(_parts(caches, block))
    expected_bytes = sum(part.numel() * part.itemsize for part in parts)
    if len(data) != expected_bytes:
        raise ValueError(f"a KV block takes {expected_bytes} bytes, not {len(data)}")
    source = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    offset = 0
    for part in parts:
        size_bytes = part.numel() * part.itemsize
        part.copy_(source[offset : offset + size_bytes].view(part.dtype).view(part.shape))
        offset += size_bytes


def _parts(caches: Sequence[PagedKeysValues], block: int) -> Iterator[torch.Tensor]:
    for cache in caches:
        yield cache.keys[block]
        yield cache.values[block]

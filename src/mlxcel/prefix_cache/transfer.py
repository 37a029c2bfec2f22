"""Moves KV blocks between the pool and the disk tier."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mlxcel.core.errors import StartupError
from mlxcel.core.ports import BlockTransfer, ModelRunner
from mlxcel.prefix_cache.blocks import BlockPool
from mlxcel.prefix_cache.disk import DiskTier
from mlxcel.prefix_cache.index import PrefixIndex
from mlxcel.prefix_cache.settings import CacheSettings
from mlxcel.prefix_cache.stats import DiskContents

log = logging.getLogger(__name__)


def open_archive(
    settings: CacheSettings, model: ModelRunner, pool: BlockPool, index: PrefixIndex
) -> BlockArchive | None:
    """The disk tier as the settings ask for it; None when they do not, or when the runner cannot give its blocks away.

    Raises:
        StartupError: the directory cannot be used.
    """
    if settings.directory is None or not settings.active:
        return None
    if not isinstance(model, BlockTransfer):
        log.warning("--prompt-cache-dir is ignored: this model keeps its state in a form that cannot be stored")
        return None
    try:
        tier = DiskTier(settings.directory, settings.directory_capacity_bytes)
    except OSError as error:
        raise StartupError(f"--prompt-cache-dir {settings.directory} cannot be used: {error.strerror}") from error
    return BlockArchive(tier, model, pool, index)


class BlockArchive:
    """Saves what rows leave behind, and loads what the tree in memory lacks. Owner thread only."""

    def __init__(self, tier: DiskTier, model: BlockTransfer, pool: BlockPool, index: PrefixIndex) -> None:
        self._tier = tier
        self._model = model
        self._pool = pool
        self._index = index

    def stored_run(self, digests: Sequence[bytes], start: int) -> int:
        """Blocks from ``start`` on that are on disk without a gap."""
        count = 0
        while start + count < len(digests) and digests[start + count] in self._tier:
            count += 1
        return count

    def load(self, digests: Sequence[bytes], token_ids: Sequence[int], held: list[int]) -> None:
        """Continue a matched path from disk, for as long as files and free blocks last.

        Args:
            digests: of the blocks that may be used.
            token_ids: the whole sequence.
            held: blocks of the path so far, held by the row that asks; the loaded ones are appended, held as well.
        """
        block_tokens = self._pool.block_tokens
        for place in range(len(held), len(digests)):
            digest = digests[place]
            tokens = token_ids[place * block_tokens : (place + 1) * block_tokens]
            if digest not in self._tier or self._index.has(digest) or not self._index.make_place():
                return
            payload = self._tier.load(digest, tokens)
            block = self._pool.take_for_store() if payload is not None else None
            if payload is None or block is None:
                return
            try:
                self._model.import_block(block, payload)
            except Exception:
                log.warning("a stored prompt block does not fit this model; it is computed again", exc_info=True)
                self._pool.drop(block)
                return
            self._index.add_loaded(digest, digests[place - 1] if place else None, tokens, block)
            self._pool.share((block,))
            held.append(block)

    def save(self, digests: Sequence[bytes], token_ids: Sequence[int], blocks: Sequence[int]) -> None:
        """Write the blocks of a path that are not on disk yet."""
        block_tokens = self._pool.block_tokens
        for place, (digest, block) in enumerate(zip(digests, blocks, strict=False)):
            if self._tier.wants(digest):
                tokens = token_ids[place * block_tokens : (place + 1) * block_tokens]
                self._tier.save(digest, tokens, self._model.export_block(block))

    def clear(self) -> None:
        self._tier.clear()

    def close(self) -> None:
        """Finish writing."""
        self._tier.close()

    def contents(self) -> DiskContents:
        return self._tier.contents()

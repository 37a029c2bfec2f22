"""The stored prefixes of a paged model: a tree of KV blocks, found by digest, given up leaf by leaf.

Every node is one full block of tokens in one physical block of the pool. A stored sequence ("entry") is a path from a root
to a leaf; sequences with a common beginning share its nodes. Blocks that running rows hold are never given up: a row holds a
whole path from the root, so that all nodes above a used one are used as well, and cold nodes can be reached leaf by leaf.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Sequence

from mlxcel.prefix_cache.blocks import BlockAccountingError, BlockPool
from mlxcel.prefix_cache.settings import CacheSettings
from mlxcel.prefix_cache.stats import CacheContents, CacheCounters

log = logging.getLogger(__name__)


class _Node:
    __slots__ = ("block", "children", "depth", "digest", "is_end", "last_used_s", "parent", "token_ids")

    def __init__(self, digest: bytes, parent: _Node | None, token_ids: tuple[int, ...], block: int, now_s: float) -> None:
        self.digest = digest
        self.parent = parent
        self.token_ids = token_ids
        self.block = block
        self.depth: int = parent.depth + 1 if parent is not None else 1
        self.children = 0
        self.is_end = False  # a whole stored sequence ends here
        self.last_used_s = now_s


class PrefixIndex:
    """Finds, keeps and gives up stored blocks. Owner thread only, except for :meth:`contents`.

    Args:
        block_bytes: KV bytes of one block.
        clock: monotonic seconds.
    """

    def __init__(
        self, pool: BlockPool, settings: CacheSettings, counters: CacheCounters, *, block_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._counters = counters
        self._block_bytes = block_bytes
        self._clock = clock
        self._nodes: dict[bytes, _Node] = {}
        self._by_block: dict[int, _Node] = {}
        self.blocks_added = 0  # ever
        self._leaf_count = 0
        self._leaf_depths = 0  # sum over the leaves
        self._heap: list[tuple[float, int, _Node]] = []  # cold leaves, oldest first; outdated items are skipped
        self._ticket = itertools.count()
        self._warned_oversized = False
        capacity_bytes = settings.capacity_bytes
        self._max_blocks = pool.block_count
        if capacity_bytes is not None and block_bytes:
            self._max_blocks = min(pool.block_count, capacity_bytes // block_bytes)

    @property
    def capacity_bytes(self) -> int:
        """Most KV bytes that can be stored: the configured limit, no more than the pool."""
        return self._max_blocks * self._block_bytes

    def contents(self) -> CacheContents:
        """What is stored now. Safe to call from any thread."""
        count = len(self._nodes)
        return CacheContents(self._leaf_count, count * self._block_bytes, self._leaf_depths, count)

    def match(self, digests: Sequence[bytes], token_ids: Sequence[int]) -> list[int]:
        """Blocks of the longest stored beginning of a sequence. Nothing is taken; the result holds until the next change."""
        block_tokens = self._pool.block_tokens
        blocks: list[int] = []
        whole = 0
        start = 0
        for digest in digests:
            node = self._nodes.get(digest)
            if node is None or node.token_ids != tuple(token_ids[start : start + block_tokens]):
                break
            blocks.append(node.block)
            if node.is_end:
                whole = len(blocks)
            start += block_tokens
        return blocks if self._settings.partial_match else blocks[:whole]

    def store(
        self, digests: Sequence[bytes], token_ids: Sequence[int], blocks: Sequence[int], start: int, *, ends: bool
    ) -> int:
        """Keep the blocks ``start`` onward of a row's sequence; the ones before were stored earlier.

        Args:
            digests: of all full blocks to be in the cache afterwards.
            token_ids: the sequence.
            blocks: the row's block table.
            ends: the row is about to release its blocks. Until then its path must consist of its own blocks, so an
                equal block stored by another row stops the storing.

        Returns:
            Leading blocks of the row that are stored now.
        """
        now_s = self._clock()
        block_tokens = self._pool.block_tokens
        parent = self._nodes.get(digests[start - 1]) if start else None
        if start and parent is None:  # the cache was reset meanwhile
            start = 0
        place = start
        for place in range(start, len(digests)):
            node = self._nodes.get(digests[place])
            if node is None:
                if len(self._nodes) >= self._max_blocks and not self._evict(protected=parent):
                    break
                first = place * block_tokens
                node = _Node(digests[place], parent, tuple(token_ids[first : first + block_tokens]), blocks[place], now_s)
                self._add(node)
            elif node.block != blocks[place] and not ends:
                break
            parent = node
        else:
            place = len(digests)
        if ends and parent is not None:
            parent.is_end = True
            parent.last_used_s = now_s
            self._note_cold_leaf(parent)
        return place

    def has(self, digest: bytes) -> bool:
        return digest in self._nodes

    def make_place(self) -> bool:
        """Make sure that one more block may be stored and that the pool has one free; False when that cannot be."""
        return (len(self._nodes) < self._max_blocks or self._evict()) and self.reclaim(1)

    def add_loaded(self, digest: bytes, parent: bytes | None, token_ids: Sequence[int], block: int) -> None:
        """File a block whose contents came from outside; the pool has handed it out with ``take_for_store``.

        Args:
            parent: digest of the block before, which is stored; None at the beginning of a sequence.
        """
        node = _Node(digest, self._nodes[parent] if parent is not None else None, tuple(token_ids), block, self._clock())
        self._add(node, held_by_row=False)
        self._note_cold_leaf(node)

    def limit_entries(self) -> None:
        """Give up the oldest sequences beyond the allowed number."""
        while self._leaf_count > self._settings.max_entries and self._evict():
            pass

    def fits(self, block_count: int) -> bool:
        """False for a sequence that the whole cache could not hold."""
        return block_count <= self._max_blocks

    def reject_oversized(self) -> None:
        """Count a sequence that does not fit; warns the first time."""
        self._counters.rejections_oversized += 1
        if not self._warned_oversized:
            self._warned_oversized = True
            log.warning("a prompt is larger than the prompt cache; raise --prompt-cache-capacity-bytes to keep it")

    def release(self, blocks: Sequence[int]) -> None:
        """A row lets go of its blocks; stored ones stay as long as there is room."""
        now_s = self._clock()
        for block in reversed(blocks):
            if self._pool.release(block):
                node = self._by_block[block]
                node.last_used_s = now_s
                self._note_cold_leaf(node)

    def reclaim(self, block_count: int) -> bool:
        """Free cold blocks until ``block_count`` are free in the pool; False when there are not enough."""
        while self._pool.free_count < block_count:
            if not self._evict():
                return False
        return True

    def expire(self) -> None:
        """Give up what was not used for too long."""
        limit_s = self._clock() - self._settings.ttl_s
        while self._heap and self._heap[0][0] <= limit_s:
            leaves = self._leaf_count
            node = self._pop_coldest()
            if node is None:
                return
            if node.last_used_s > limit_s:
                self._note_cold_leaf(node)
                return
            self._remove(node)
            self._counters.evictions_ttl += leaves - self._leaf_count

    def clear(self) -> None:
        """Forget everything. Rows that use stored blocks keep them for themselves."""
        for block in self._by_block:
            self._pool.drop(block)
        self._nodes.clear()
        self._by_block.clear()
        self._heap.clear()
        self._leaf_count = self._leaf_depths = 0

    def stored_blocks(self) -> Sequence[int]:
        return list(self._by_block)

    def check(self) -> None:
        """Raises BlockAccountingError when the tree contradicts itself."""
        children = dict.fromkeys(self._nodes, 0)
        for node in self._nodes.values():
            if self._by_block.get(node.block) is not node:
                raise BlockAccountingError(f"block {node.block} is filed under another node")
            if node.parent is not None:
                if self._nodes.get(node.parent.digest) is not node.parent:
                    raise BlockAccountingError("a stored block has lost its parent")
                children[node.parent.digest] += 1
                if self._pool.is_used(node.block) and not self._pool.is_used(node.parent.block):
                    raise BlockAccountingError("a used block has a cold parent")
        leaves = [node for node in self._nodes.values() if node.children == 0]
        if any(node.children != children[node.digest] for node in self._nodes.values()):
            raise BlockAccountingError("a stored block has miscounted its children")
        if len(leaves) != self._leaf_count or sum(node.depth for node in leaves) != self._leaf_depths:
            raise BlockAccountingError("the stored sequences are miscounted")
        queued = {id(node) for used_s, _, node in self._heap if used_s == node.last_used_s}
        if any(id(node) not in queued for node in leaves if not self._pool.is_used(node.block)):
            raise BlockAccountingError("a cold block cannot be reclaimed")

    # ---- the tree -------------------------------------------------------------------------------------------------

    def _add(self, node: _Node, *, held_by_row: bool = True) -> None:
        if held_by_row:
            self._pool.store(node.block)
        self.blocks_added += 1
        self._nodes[node.digest] = node
        self._by_block[node.block] = node
        parent = node.parent
        if parent is not None and parent.children == 0:
            self._leaf_depths += 1
        else:
            self._leaf_count += 1
            self._leaf_depths += node.depth
        if parent is not None:
            parent.children += 1

    def _remove(self, node: _Node) -> None:
        """Drop a cold leaf; its parent may become one."""
        del self._nodes[node.digest]
        del self._by_block[node.block]
        self._pool.drop(node.block)
        parent = node.parent
        if parent is not None:
            parent.children -= 1
        if parent is None or parent.children:
            self._leaf_count -= 1
            self._leaf_depths -= node.depth
            return
        self._leaf_depths -= 1
        parent.is_end = parent.is_end or node.is_end
        parent.last_used_s = max(parent.last_used_s, node.last_used_s)
        self._note_cold_leaf(parent)

    def _evict(self, protected: _Node | None = None) -> bool:
        """Give up the least recently used cold leaf, ``protected`` excepted; False when there is none."""
        node = self._pop_coldest()
        if node is not None and node is protected:
            while node is protected:
                node = self._pop_coldest()
            self._note_cold_leaf(protected)
        if node is None:
            return False
        leaves = self._leaf_count
        self._remove(node)
        self._counters.evictions_lru += leaves - self._leaf_count
        return True

    def _note_cold_leaf(self, node: _Node) -> None:
        if node.children or self._pool.is_used(node.block):
            return
        if len(self._heap) > 64 + 4 * len(self._nodes):
            self._heap = [item for item in self._heap if self._is_current(item)]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (node.last_used_s, next(self._ticket), node))

    def _pop_coldest(self) -> _Node | None:
        while self._heap:
            item = heapq.heappop(self._heap)
            if self._is_current(item):
                return item[2]
        return None

    def _is_current(self, item: tuple[float, int, _Node]) -> bool:
        used_s, _, node = item
        return (
            node.last_used_s == used_s
            and node.children == 0
            and self._nodes.get(node.digest) is node
            and not self._pool.is_used(node.block)
        )

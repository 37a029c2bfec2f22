"""The tree of stored blocks on its own, with a pool and rows made by hand."""

from __future__ import annotations

import pytest

from mlxcel.engine.sched.row import Row
from mlxcel.prefix_cache.blocks import BlockAccountingError, BlockPool
from mlxcel.prefix_cache.index import PrefixIndex
from mlxcel.prefix_cache.keys import extend_digests, root_digest
from mlxcel.prefix_cache.plan import adopted_blocks, reusable_blocks
from mlxcel.prefix_cache.settings import CacheSettings
from mlxcel.prefix_cache.stats import CacheCounters
from mlxcel.testing.clock import FakeClock
from mlxcel.testing.engine_bench import make_work


class Shelf:
    """An index over a small pool of blocks of 4 tokens."""

    def __init__(self, block_count: int = 16, settings: CacheSettings | None = None) -> None:
        self.clock = FakeClock()
        self.pool = BlockPool(block_count, 4)
        self.counters = CacheCounters()
        self.index = PrefixIndex(self.pool, settings or CacheSettings(), self.counters, block_bytes=8, clock=self.clock)

    def digests(self, tokens: list[int], namespace: str = "") -> list[bytes]:
        digests: list[bytes] = []
        extend_digests(digests, root_digest("model", namespace), tokens, 4, len(tokens) // 4)
        return digests

    def keep(self, tokens: list[int]) -> None:
        """What a row does that computed ``tokens`` and ended."""
        blocks = self.pool.allocate(len(tokens) // 4)
        assert blocks is not None
        self.clock.advance(1)
        self.index.store(self.digests(tokens), tokens, blocks, 0, ends=True)
        self.index.release(blocks)

    def check(self) -> None:
        self.pool.check({}, self.index.stored_blocks())
        self.index.check()


def test_the_longest_common_beginning_is_found() -> None:
    shelf = Shelf()
    shelf.keep([*range(8), *range(50, 54)])
    shelf.keep([*range(8), *range(60, 64)])
    shelf.check()
    assert shelf.index.contents().entries == 2
    assert shelf.index.contents().unique_blocks == 4
    tokens = [*range(8), *range(60, 64), 1, 2, 3, 4]
    assert len(shelf.index.match(shelf.digests(tokens), tokens)) == 3
    assert len(shelf.index.match(shelf.digests(tokens, "other"), tokens)) == 0


def test_equal_digests_of_other_tokens_are_not_trusted() -> None:
    shelf = Shelf()
    shelf.keep(list(range(8)))
    assert len(shelf.index.match(shelf.digests(list(range(8))), list(range(8)))) == 2
    assert shelf.index.match(shelf.digests(list(range(8))), list(range(100, 108))) == []


def test_leaves_go_first_and_used_ones_never() -> None:
    shelf = Shelf(block_count=6)
    shelf.keep(list(range(12)))
    shelf.keep(list(range(50, 62)))
    used = shelf.index.match(shelf.digests(list(range(8))), list(range(8)))
    shelf.pool.share(used)
    assert shelf.index.reclaim(4)
    assert shelf.index.contents().unique_blocks == 2
    assert not shelf.index.reclaim(5)
    shelf.index.release(used)
    assert shelf.index.reclaim(6)
    shelf.check()


def test_reuse_plan() -> None:
    assert [reusable_blocks(tokens, 16) for tokens in (0, 1, 16, 17, 32, 33)] == [0, 0, 0, 1, 1, 2]
    assert adopted_blocks(5, 81, 16, 32) == 5
    assert adopted_blocks(5, 80, 16, 32) == 4
    assert adopted_blocks(1, 80, 16, 32) == 0


def test_the_pool_notices_wrong_accounts() -> None:
    pool = BlockPool(4, 4)
    blocks = pool.allocate(2)
    assert blocks == (0, 1)
    assert pool.allocate(3) is None
    pool.check({0: 1, 1: 1}, ())
    for uses, stored in (({0: 1}, []), ({0: 1, 1: 2}, []), ({0: 1, 1: 1}, [0])):
        with pytest.raises(BlockAccountingError):
            pool.check(uses, stored)
    with pytest.raises(BlockAccountingError):
        pool.share([3])
    with pytest.raises(BlockAccountingError):
        pool.drop(0)
    pool.release(0)
    with pytest.raises(BlockAccountingError):
        pool.release(0)
    with pytest.raises(BlockAccountingError):
        pool.store(0)


def test_a_shifted_context_forgets_its_keys() -> None:
    row = Row(make_work(prompt=40, keep_tokens=8), 0, (0.0, 0), 0.0)
    row.tokens += range(24)
    row.reuse.digests = [b"stale"]
    row.shift_context()
    assert row.tokens == [*range(100, 108), *range(136, 140), *range(24)]
    assert (row.head_tokens, row.reuse.digests, row.truncated) == (12, [], True)

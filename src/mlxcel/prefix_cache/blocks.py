"""The ledger of physical KV blocks: who holds which. It knows no tokens and no bytes.

A block is *free*, *used* by one or more rows, and may besides be *stored* by the prefix cache. A stored block that no row
uses is *cold*: it can be taken back at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


class BlockAccountingError(RuntimeError):
    """The ledger contradicts its holders: a bug, never a state to go on from."""


class BlockPool:
    """Reference counts over ``block_count`` blocks of ``block_tokens`` tokens. Not thread-safe.

    Attributes:
        free_count: blocks nobody holds.
        cold_count: blocks held by the prefix cache alone.
    """

    def __init__(self, block_count: int, block_tokens: int) -> None:
        self.block_count = block_count
        self.block_tokens = block_tokens
        self.cold_count = 0
        self._users = [0] * block_count
        self._stored = bytearray(block_count)
        self._free = list(range(block_count - 1, -1, -1))

    @property
    def free_count(self) -> int:
        return len(self._free)

    @property
    def used_count(self) -> int:
        """Blocks that at least one row holds."""
        return self.block_count - len(self._free) - self.cold_count

    def allocate(self, count: int) -> tuple[int, ...] | None:
        """Take ``count`` free blocks for one row; None (and nothing taken) when there are not enough."""
        if count > len(self._free):
            return None
        if count == 0:
            return ()
        taken = self._free[-count:]
        del self._free[-count:]
        taken.reverse()
        for block in taken:
            self._users[block] = 1
        return tuple(taken)

    def share(self, blocks: Sequence[int]) -> None:
        """Count one more row as a user of stored or used blocks."""
        users = self._users
        for block in blocks:
            if users[block] == 0:
                if not self._stored[block]:
                    raise BlockAccountingError(f"block {block} is shared but nobody holds it")
                self.cold_count -= 1
            users[block] += 1

    def release(self, block: int) -> bool:
        """One row lets go of a block. True when the block is cold now, False when it is free or still used."""
        count = self._users[block] - 1
        if count < 0:
            raise BlockAccountingError(f"block {block} is released more often than taken")
        self._users[block] = count
        if count:
            return False
        if self._stored[block]:
            self.cold_count += 1
            return True
        self._free.append(block)
        return False

    def store(self, block: int) -> None:
        """The prefix cache takes hold of a block that a row uses."""
        if self._stored[block] or not self._users[block]:
            raise BlockAccountingError(f"block {block} cannot be stored")
        self._stored[block] = 1

    def take_for_store(self) -> int | None:
        """Take a free block for the prefix cache itself (contents come from elsewhere); None when there is none."""
        if not self._free:
            return None
        block = self._free.pop()
        self._stored[block] = 1
        self.cold_count += 1
        return block

    def drop(self, block: int) -> None:
        """The prefix cache lets go of a block; it is free unless a row still uses it."""
        if not self._stored[block]:
            raise BlockAccountingError(f"block {block} is dropped but not stored")
        self._stored[block] = 0
        if not self._users[block]:
            self.cold_count -= 1
            self._free.append(block)

    def is_used(self, block: int) -> bool:
        return self._users[block] > 0

    def check(self, uses: Mapping[int, int], stored: Iterable[int]) -> None:
        """Compare the ledger with what its holders say they hold.

        Args:
            uses: block -> number of rows that hold it.
            stored: blocks the prefix cache holds.

        Raises:
            BlockAccountingError: at the first difference.
        """
        stored_set = set(stored)
        free = set(self._free)
        if len(free) != len(self._free):
            raise BlockAccountingError("a block is in the free list twice")
        cold = 0
        for block in range(self.block_count):
            if self._users[block] != uses.get(block, 0):
                raise BlockAccountingError(f"block {block} has {self._users[block]} users, not {uses.get(block, 0)}")
            if bool(self._stored[block]) != (block in stored_set):
                raise BlockAccountingError(f"block {block} is stored on one side only")
            held = self._users[block] > 0 or block in stored_set
            if held == (block in free):
                raise BlockAccountingError(f"block {block} is both held and free, or neither")
            cold += self._users[block] == 0 and block in stored_set
        if cold != self.cold_count:
            raise BlockAccountingError(f"{cold} blocks are cold, not {self.cold_count}")

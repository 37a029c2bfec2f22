"""An in-memory store with three caps: entries, bytes and age. The least recently used entry goes first."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Caps of one store.

    Attributes:
        max_entries: 0 switches the store off.
        max_bytes: 0 keeps the store on, but no entry fits.
        ttl_s: age after the last write at which an entry expires; 0 never.
    """

    max_entries: int
    max_bytes: int
    ttl_s: float


@dataclass(slots=True)
class _Entry(Generic[Value]):
    value: Value
    size_bytes: int
    written_s: float


class LruStore(Generic[Key, Value]):
    """Keys to values under :class:`StoreLimits`. Used from one thread; every call is constant time, amortised.

    Reading an entry makes it the most recently used one; only writing it renews its age.
    """

    def __init__(self, limits: StoreLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._entries: OrderedDict[Key, _Entry[Value]] = OrderedDict()
        self._total_bytes = 0

    @property
    def enabled(self) -> bool:
        """False when the store was switched off by ``max_entries`` 0."""
        return self._limits.max_entries > 0

    @property
    def total_bytes(self) -> int:
        """Bytes of all entries, as their writers counted them."""
        return self._total_bytes

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """The value, or None when it was never there, was evicted or has expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self._expired(entry):
            self.remove(key)
            return None
        self._entries.move_to_end(key)
        return entry.value

    def put(self, key: Key, value: Value, size_bytes: int) -> None:
        """Write an entry and evict what no longer fits. A value larger than ``max_bytes`` is not kept."""
        self.remove(key)
        if size_bytes > self._limits.max_bytes or not self.enabled:
            return
        self._entries[key] = _Entry(value, size_bytes, self._clock())
        self._total_bytes += size_bytes
        while len(self._entries) > self._limits.max_entries or self._total_bytes > self._limits.max_bytes:
            self.remove(next(iter(self._entries)))

    def newest(self) -> Iterator[tuple[Key, Value]]:
        """All entries that have not expired, the most recently used first."""
        return ((key, entry.value) for key, entry in reversed(self._entries.items()) if not self._expired(entry))

    def remove(self, key: Key) -> bool:
        """Forget an entry; False when there is none. An expired entry counts as none."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._total_bytes -= entry.size_bytes
        return not self._expired(entry)

    def _expired(self, entry: _Entry[Value]) -> bool:
        return self._limits.ttl_s > 0 and self._clock() - entry.written_s >= self._limits.ttl_s

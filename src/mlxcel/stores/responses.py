"""Stored responses and conversations, each visible only under the API key that made it.

The store does not look into what it keeps: a response body and its items are JSON bytes that only the wire dialect
reads. Bytes cannot be changed by a reader, are shared between the entries of a chain, and make the size exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlxcel.stores.lru import LruStore, StoreLimits


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One finished response.

    Attributes:
        body: the response object as it was sent.
        items: everything a follow-up continues from: earlier items of its chain, its input and its output. A chain
            therefore survives the eviction or deletion of its earlier links.
        output_ids: ids of the output items, in order; they are the last ``len(output_ids)`` of ``items``.
    """

    body: bytes
    items: tuple[bytes, ...]
    output_ids: tuple[str, ...] = ()


class ResponseStore:
    """Responses by id."""

    def __init__(self, limits: StoreLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._responses: LruStore[tuple[str, str], StoredResponse] = LruStore(limits, clock=clock)

    @property
    def enabled(self) -> bool:
        """False when persistence is switched off."""
        return self._responses.enabled

    def get(self, scope: str, response_id: str) -> StoredResponse | None:
        """The response, or None when this scope has none of that id (any more)."""
        return self._responses.get((scope, response_id))

    def put(self, scope: str, response_id: str, response: StoredResponse) -> None:
        """Keep a response, replacing an earlier one of that id."""
        size_bytes = len(response.body) + sum(map(len, response.items))
        self._responses.put((scope, response_id), response, size_bytes)

    def output_item(self, scope: str, item_id: str) -> bytes | None:
        """An output item of any response of this scope; None when there is none of that id (any more)."""
        for (owner, _), response in self._responses.newest():
            if owner == scope and item_id in response.output_ids:
                place = response.output_ids.index(item_id) - len(response.output_ids)
                return response.items[place]
        return None

    def remove(self, scope: str, response_id: str) -> bool:
        """Forget a response; False when there is none."""
        return self._responses.remove((scope, response_id))


class ConversationStore:
    """Items of named conversations. A conversation begins with its first append."""

    def __init__(self, limits: StoreLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._conversations: LruStore[tuple[str, str], tuple[bytes, ...]] = LruStore(limits, clock=clock)

    @property
    def enabled(self) -> bool:
        """False when conversations are switched off."""
        return self._conversations.enabled

    def items(self, scope: str, conversation_id: str) -> tuple[bytes, ...]:
        """All items so far, oldest first; empty for a conversation that does not exist (any more)."""
        return self._conversations.get((scope, conversation_id)) or ()

    def replace(self, scope: str, conversation_id: str, items: Sequence[bytes]) -> None:
        """Set the items of a conversation."""
        kept = tuple(items)
        self._conversations.put((scope, conversation_id), kept, sum(map(len, kept)))

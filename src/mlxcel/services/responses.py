"""Stored responses: what a chain or a conversation continues from, and responses that are still running."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from mlxcel.core.errors import InvalidRequest, StoredNotFound
from mlxcel.stores.responses import ConversationStore, ResponseStore, StoredResponse


class Cancellable(Protocol):
    """A running answer."""

    def cancel(self) -> None:
        """Ask for an early end."""


@dataclasses.dataclass(frozen=True, slots=True)
class Thread:
    """What a request continues and where its answer is kept.

    Attributes:
        scope: of the API key.
        response_id: of the answer.
        conversation_id: conversation that the answer is added to.
        items: earlier items, oldest first.
        stores: False keeps nothing.
    """

    scope: str
    response_id: str
    conversation_id: str | None = None
    items: tuple[bytes, ...] = ()
    stores: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class _Running:
    answer: Cancellable
    body: bytes


class ResponsesService:
    """Keeps responses and conversations. Bodies and items are JSON bytes that it does not look into."""

    def __init__(self, responses: ResponseStore, conversations: ConversationStore) -> None:
        self._responses = responses
        self._conversations = conversations
        self._running: dict[tuple[str, str], _Running] = {}

    def open_thread(
        self, scope: str, response_id: str, *, previous_id: str | None, conversation_id: str | None, stores: bool
    ) -> Thread:
        """What a new request continues.

        Raises:
            InvalidRequest: persistence is switched off, or there is no such previous response.
        """
        items: tuple[bytes, ...] = ()
        if previous_id is not None:
            self._require_responses("previous_response_id")
            previous = self._responses.get(scope, previous_id)
            if previous is None:
                raise InvalidRequest(
                    "'previous_response_id': no stored response has this id (any more)",
                    param="previous_response_id",
                    code="previous_response_not_found",
                )
            items = previous.items
        elif conversation_id is not None:
            if not self._conversations.enabled:
                raise InvalidRequest(
                    "'conversation': conversations are switched off; send the whole history in 'input', or start the server "
                    "with --conversation-store-max-entries above 0",
                    param="conversation",
                )
            items = self._conversations.items(scope, conversation_id)
        return Thread(scope, response_id, conversation_id, items, stores)

    def started(self, thread: Thread, answer: Cancellable, body: bytes) -> None:
        """A response whose id the client knows is running; it can be retrieved and cancelled from now on."""
        if thread.stores and self._responses.enabled:
            self._running[(thread.scope, thread.response_id)] = _Running(answer, body)

    def ended(self, thread: Thread) -> None:
        """A started response is over, whatever its end; may be called again."""
        self._running.pop((thread.scope, thread.response_id), None)

    def keep(
        self,
        thread: Thread,
        body: bytes,
        *,
        added: Sequence[bytes],
        output_ids: Sequence[str],
        compacted: Sequence[bytes] | None = None,
    ) -> None:
        """Store a finished response and add it to its conversation.

        Args:
            thread: from :meth:`open_thread`.
            body: the response object.
            added: the request's own items and those of the output.
            output_ids: ids of the output items.
            compacted: what a follow-up continues from, when that is less than the thread's items and ``added``.
        """
        self.ended(thread)
        if not thread.stores:
            return
        items = (*thread.items, *added) if compacted is None else tuple(compacted)
        self._responses.put(thread.scope, thread.response_id, StoredResponse(body, items, tuple(output_ids)))
        if thread.conversation_id is not None:
            now_there = self._conversations.items(thread.scope, thread.conversation_id)
            if now_there != thread.items:  # another answer was added meanwhile: neither may get lost
                items = (*now_there, *added)
            self._conversations.replace(thread.scope, thread.conversation_id, items)

    def retrieve(self, scope: str, response_id: str) -> bytes:
        """The body of a response; of a running one, as it was when it began.

        Raises:
            InvalidRequest: persistence is switched off.
            StoredNotFound: there is no such response (any more).
        """
        self._require_responses("id")
        running = self._running.get((scope, response_id))
        return running.body if running is not None else self._stored(scope, response_id).body

    def delete(self, scope: str, response_id: str) -> None:
        """Forget a response. Answers that continued it keep their history.

        Raises:
            InvalidRequest: persistence is switched off.
            StoredNotFound: there is no such response (any more).
        """
        self._require_responses("id")
        if not self._responses.remove(scope, response_id):
            raise _not_found(response_id)

    def cancel(self, scope: str, response_id: str, mark: Callable[[bytes], bytes]) -> bytes:
        """Mark a response as cancelled, and end it when it is still running.

        Args:
            mark: the body of a response to that of the cancelled one.

        Raises:
            InvalidRequest: persistence is switched off.
            StoredNotFound: there is no such response (any more).
        """
        self._require_responses("id")
        running = self._running.get((scope, response_id))
        if running is not None:
            running.answer.cancel()
            return mark(running.body)
        stored = self._stored(scope, response_id)
        cancelled = dataclasses.replace(stored, body=mark(stored.body))
        self._responses.put(scope, response_id, cancelled)
        return cancelled.body

    def output_item(self, scope: str, item_id: str) -> bytes | None:
        """A stored output item by its id; None when there is none (any more)."""
        return self._responses.output_item(scope, item_id)

    def _stored(self, scope: str, response_id: str) -> StoredResponse:
        stored = self._responses.get(scope, response_id)
        if stored is None:
            raise _not_found(response_id)
        return stored

    def _require_responses(self, field: str) -> None:
        if not self._responses.enabled:
            raise InvalidRequest(
                f"'{field}': stored responses are switched off; start the server with --responses-store-max-entries above 0",
                param=field,
            )


def _not_found(response_id: str) -> StoredNotFound:
    shown = response_id if response_id.isascii() and response_id.isprintable() else ""
    return StoredNotFound(f"Response with id '{shown[:64]}' not found.", param="id")

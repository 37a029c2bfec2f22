"""Thinking text of earlier answers, for clients that send back only the visible text.

Without it the next prompt differs from what the model produced, and the prompt cache cannot reuse anything after the
first thought. An entry is found only by a client that repeats the conversation exactly, in the same scope.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence

from mlxcel.core.chat import Message
from mlxcel.stores.lru import LruStore, StoreLimits

_MAX_SHARE = 8  # one entry may take an eighth of the budget
_KEY_BYTES = 32


class ReasoningEchoStore:
    """Reasoning by the digest of everything that led to it.

    Args:
        max_bytes: budget for keys and texts; 0 switches the store off.
        max_entries: most entries kept.
    """

    def __init__(self, *, max_bytes: int = 16 * 2**20, max_entries: int = 4096) -> None:
        self._max_entry_bytes = max_bytes // _MAX_SHARE
        self._texts: LruStore[bytes, str] = LruStore(StoreLimits(max_entries if max_bytes > 0 else 0, max_bytes, 0))

    @property
    def enabled(self) -> bool:
        """False when the budget is 0."""
        return self._texts.enabled

    def record(self, namespace: Iterable[str], history: Sequence[Message], answer: Message, reasoning: str) -> None:
        """Remember the reasoning that ``answer`` was given with.

        Args:
            namespace: what keeps conversations apart besides their text: scope, model, template, session.
            history: the messages the answer replied to.
            answer: the assistant turn as a client would send it back.
            reasoning: its thinking text.
        """
        size_bytes = len(reasoning.encode()) + _KEY_BYTES
        if self.enabled and reasoning and size_bytes <= self._max_entry_bytes:
            *_, key = _keys(namespace, (*history, answer))
            self._texts.put(key, reasoning, size_bytes)

    def restore(self, namespace: Iterable[str], messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages with remembered reasoning put where the client sent none; its own always wins."""
        if not self.enabled or not len(self._texts):
            return tuple(messages)
        return tuple(
            self._restored(message, key) if message.role == "assistant" and message.reasoning is None else message
            for message, key in zip(messages, _keys(namespace, messages), strict=True)
        )

    def _restored(self, message: Message, key: bytes) -> Message:
        reasoning = self._texts.get(key)
        return message if reasoning is None else dataclasses.replace(message, reasoning=reasoning)


def _keys(namespace: Iterable[str], messages: Iterable[Message]) -> Iterator[bytes]:
    """One digest per message, over it and all before it. Reasoning is left out: a client may have dropped any of it."""
    digest = hashlib.sha256(_packed(namespace))
    for message in messages:
        media = (text for part in message.media for text in (part.kind, part.url))
        calls = (text for call in message.tool_calls for text in (call.id, call.name))
        digest.update(_packed((message.role, message.text, message.tool_call_id or "")))
        digest.update(_packed(media) + _packed(calls))
        yield digest.digest()


def _packed(texts: Iterable[str]) -> bytes:
    """Texts with their lengths, so that no two sequences of texts give the same bytes."""
    packed = [text.encode("utf-8", "surrogatepass") for text in texts]
    return b"".join([b"%d;" % len(packed), *(b"%d:%b" % (len(text), text) for text in packed)])

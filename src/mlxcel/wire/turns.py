"""Turns from the finer pieces of the item dialects: Responses items and Anthropic blocks.

Both send an assistant turn in pieces (thinking, text, calls) and tool results that may hold images. Chat templates want
one message a turn and look for images in user turns only; :class:`TurnBuilder` brings the one into the other, so that
the same conversation renders the same prompt whichever surface it came through.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlxcel.core.chat import MediaPart, Message, Part, TextPart, ToolCall

MEDIA_NOTE = "[Image output attached in the next message]"


def says_something(message: Message) -> bool:
    """True when a turn holds visible text, media, a call or thinking."""
    return bool(message.text.strip() or message.media or message.tool_calls or message.reasoning)


class TurnBuilder:
    """Collects pieces in the order they were sent. Use once, then call :meth:`finish`."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._moved_media: list[MediaPart] = []
        self._thinking: list[str] = []
        self._parts: list[Part] = []
        self._calls: list[ToolCall] = []

    def system(self, parts: Sequence[Part]) -> None:
        """A system turn; its media move on to a user turn."""
        self._close()
        self._messages.append(Message("system", _texts(parts)))
        self._move(parts)

    def user(self, parts: Sequence[Part]) -> None:
        """A user turn. It takes up media that wait for one, ahead of its own parts."""
        self._close(next_is_user=True)
        self._messages.append(Message("user", (*self._take_moved(), *parts)))

    @property
    def has_answer(self) -> bool:
        """True while the open assistant turn has text and no call: what follows it may be a turn of its own."""
        return bool(self._parts) and not self._calls

    def end_turn(self) -> None:
        """End the assistant turn, so that the next piece begins another."""
        self._close()

    def thinking(self, text: str) -> None:
        """Thinking of the assistant turn."""
        self._thinking.append(text)

    def assistant(self, parts: Sequence[Part]) -> None:
        """Text of the assistant turn; media move on to a user turn."""
        self._parts.extend(parts)

    def call(self, call: ToolCall) -> None:
        """A tool call of the current assistant turn."""
        self._calls.append(call)

    def tool_result(self, call_id: str, parts: Sequence[Part]) -> None:
        """The result of a call: texts joined with newlines, media moved on with a note in their place."""
        self._close(next_is_user=True)
        lines = [part.text for part in parts if isinstance(part, TextPart)]
        if any(isinstance(part, MediaPart) for part in parts):
            lines.append(MEDIA_NOTE)
        self._messages.append(Message("tool", (TextPart("\n".join(lines)),), tool_call_id=call_id))
        self._move(parts)

    def finish(self) -> tuple[Message, ...]:
        """All turns."""
        self._close()
        return tuple(self._messages)

    def _close(self, *, next_is_user: bool = False) -> None:
        """End the assistant turn. Waiting media get a user turn of their own unless one comes anyway."""
        if self._thinking or self._parts or self._calls:
            self._flush_media()
            calls, reasoning = tuple(self._calls), "".join(self._thinking) or None
            self._messages.append(Message("assistant", _texts(self._parts), tool_calls=calls, reasoning=reasoning))
            self._move(self._parts)
            self._thinking, self._parts, self._calls = [], [], []
        if not next_is_user:
            self._flush_media()

    def _flush_media(self) -> None:
        if self._moved_media:
            self._messages.append(Message("user", self._take_moved()))

    def _move(self, parts: Iterable[Part]) -> None:
        self._moved_media.extend(part for part in parts if isinstance(part, MediaPart))

    def _take_moved(self) -> tuple[MediaPart, ...]:
        moved, self._moved_media = tuple(self._moved_media), []
        return moved


def _texts(parts: Iterable[Part]) -> tuple[TextPart, ...]:
    return tuple(part for part in parts if isinstance(part, TextPart))

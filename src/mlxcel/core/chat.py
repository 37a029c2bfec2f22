"""The conversation in neutral form: messages, parts, tools. Dialects translate into these and never into each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
MediaKind = Literal["image", "audio", "video"]


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class MediaPart:
    """Media named by the client and not fetched yet. ``url`` is a data URI, an http(s) URL or a local path."""

    kind: MediaKind
    url: str
    detail: str | None = None
    format: str | None = None
    fps: float | None = None


Part = TextPart | MediaPart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model made. ``arguments`` is the JSON text as the model (or the client) wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function the model may call; ``parameters`` is its JSON schema."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """``mode`` "named" forces ``name``; "required" forces any declared function."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None

    @property
    def forced(self) -> bool:
        return self.mode in ("required", "named")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. ``parts`` empty and ``tool_calls`` set is a tool-only assistant turn.

    ``reasoning`` is earlier thinking that the client sent back. ``tool_call_id`` and ``name`` belong to role "tool".
    """

    role: Role
    parts: tuple[Part, ...] = ()
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None

    @property
    def text(self) -> str:
        """The text parts joined as they are."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def media(self) -> tuple[MediaPart, ...]:
        return tuple(part for part in self.parts if isinstance(part, MediaPart))

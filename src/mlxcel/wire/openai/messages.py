"""Chat messages and tools in OpenAI's form, to neutral ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import Discriminator, Tag

from mlxcel.core.chat import MediaPart, Message, Part, Role, TextPart, ToolCall, ToolChoice, ToolSpec
from mlxcel.core.errors import InvalidRequest
from mlxcel.wire.parse import WireModel
from mlxcel.wire.tools import MAX_TOOLS
from mlxcel.wire.turns import says_something


class TextContent(WireModel):
    type: Literal["text", "input_text", "output_text"]
    text: str


class RefusalContent(WireModel):
    type: Literal["refusal"]
    refusal: str


class MediaUrl(WireModel):
    url: str
    detail: str | None = None
    fps: float | None = None


class ImageContent(WireModel):
    type: Literal["image_url"]
    image_url: MediaUrl | str


class VideoContent(WireModel):
    type: Literal["video_url"]
    video_url: MediaUrl | str


class AudioData(WireModel):
    data: str
    format: str | None = None


class AudioContent(WireModel):
    type: Literal["input_audio"]
    input_audio: AudioData


def _part_tag(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    return "‹text›" if kind in ("input_text", "output_text") else f"‹{kind}›"


ContentPart = Annotated[
    Annotated[TextContent, Tag("‹text›")]
    | Annotated[RefusalContent, Tag("‹refusal›")]
    | Annotated[ImageContent, Tag("‹image_url›")]
    | Annotated[VideoContent, Tag("‹video_url›")]
    | Annotated[AudioContent, Tag("‹input_audio›")],
    Discriminator(
        _part_tag,
        custom_error_type="content_part",
        custom_error_message="must be an object whose type is text, image_url, video_url or input_audio",
    ),
]


def _content_tag(value: Any) -> str:
    return "‹parts›" if isinstance(value, list) else "‹string›"


Content = Annotated[
    Annotated[str, Tag("‹string›")] | Annotated[list[ContentPart], Tag("‹parts›")], Discriminator(_content_tag)
]


class FunctionCall(WireModel):
    name: str
    arguments: str | dict[str, Any] | None = None


class RequestToolCall(WireModel):
    id: str | None = None
    type: str | None = None
    function: FunctionCall


class ChatMessage(WireModel):
    """One message of the request."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[RequestToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class FunctionSpec(WireModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(WireModel):
    type: Literal["function"] = "function"
    function: FunctionSpec


class ChosenFunction(WireModel):
    name: str


class NamedToolChoice(WireModel):
    type: Literal["function"]
    function: ChosenFunction


def to_messages(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """Neutral messages.

    Raises:
        InvalidRequest: a turn that says nothing, or a tool result that answers no call.
    """
    if not messages:
        raise InvalidRequest("'messages' must hold at least one message", param="messages")
    converted = tuple(_message(message, f"messages[{index}]") for index, message in enumerate(messages))
    if not any(says_something(message) for message in converted):
        raise InvalidRequest("'messages': at least one message must have content", param="messages")
    return converted


_ROLES: dict[str, Role] = {"developer": "system", "function": "tool"}


def _message(message: ChatMessage, path: str) -> Message:
    role: Role = _ROLES.get(message.role, message.role)  # type: ignore[arg-type]
    if message.content is None and role not in ("assistant", "tool"):
        raise InvalidRequest(f"'{path}.content' is required for the role {message.role}", param=f"{path}.content")
    if message.tool_calls and role != "assistant":
        raise InvalidRequest(f"'{path}.tool_calls' belongs to the role assistant", param=f"{path}.tool_calls")
    calls = tuple(
        ToolCall(call.id or f"call_{path}_{number}", call.function.name, _arguments(call.function.arguments))
        for number, call in enumerate(message.tool_calls or ())
    )
    return Message(
        role,
        _parts(message.content),
        name=message.name,
        tool_calls=calls,
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning_content or message.reasoning or None,
    )


def _arguments(arguments: str | dict[str, Any] | None) -> str:
    if isinstance(arguments, dict):
        return orjson.dumps(arguments).decode()
    return arguments or ""


def _parts(content: str | Sequence[Any] | None) -> tuple[Part, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(_part(part) for part in content)


def _part(part: Any) -> Part:
    if isinstance(part, TextContent):
        return TextPart(part.text)
    if isinstance(part, RefusalContent):
        return TextPart(part.refusal)
    if isinstance(part, AudioContent):
        return MediaPart("audio", part.input_audio.data, format=part.input_audio.format)
    source = part.image_url if isinstance(part, ImageContent) else part.video_url
    media = MediaUrl(url=source) if isinstance(source, str) else source
    kind: Literal["image", "video"] = "image" if isinstance(part, ImageContent) else "video"
    return MediaPart(kind, media.url, detail=media.detail, fps=media.fps)


def to_tools(tools: Sequence[ToolDefinition] | None) -> tuple[ToolSpec, ...]:
    """Neutral tool declarations.

    Raises:
        InvalidRequest: too many tools, or a tool without a name.
    """
    if tools and len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"'tools': at most {MAX_TOOLS} tools", param="tools")
    for index, tool in enumerate(tools or ()):
        if not tool.function.name.strip():
            raise InvalidRequest(f"'tools[{index}].function.name' must not be empty", param=f"tools[{index}].function.name")
    return tuple(
        ToolSpec(tool.function.name, tool.function.description, tool.function.parameters or {}, tool.function.strict)
        for tool in tools or ()
    )


def to_tool_choice(choice: str | NamedToolChoice | None) -> ToolChoice:
    """Neutral tool choice; whether the named function is declared is checked where the tools are known.

    Raises:
        InvalidRequest: an unknown word or an empty name.
    """
    if choice is None or choice == "auto":
        return ToolChoice()
    if choice == "none":
        return ToolChoice("none")
    if choice == "required":
        return ToolChoice("required")
    if isinstance(choice, str):
        raise InvalidRequest("'tool_choice': must be auto, none, required or a named function", param="tool_choice")
    if not choice.function.name.strip():
        raise InvalidRequest("'tool_choice.function.name' must not be empty", param="tool_choice.function.name")
    return ToolChoice("named", choice.function.name)

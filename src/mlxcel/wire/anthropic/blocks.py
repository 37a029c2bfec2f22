"""Content blocks of the Anthropic Messages API, and the turns they make.

Blocks that only Anthropic's own server tools produce are dropped, as are blocks that no local model can read back
(``redacted_thinking``); a block of an unknown type is an error, because dropping it silently would change the question.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from mlxcel.core.chat import MediaPart, Part, TextPart, ToolCall
from mlxcel.core.errors import InvalidRequest
from mlxcel.wire.parse import WireModel
from mlxcel.wire.turns import TurnBuilder


class TextBlock(WireModel):
    type: Literal["text"] = "text"
    text: str


class ImageSource(WireModel):
    type: str
    data: str | None = None
    media_type: str | None = None
    url: str | None = None


class ImageBlock(WireModel):
    type: Literal["image"]
    source: ImageSource


class DocumentSource(WireModel):
    type: str
    data: str | None = None
    content: str | list[TextBlock] | None = None


class DocumentBlock(WireModel):
    type: Literal["document"]
    source: DocumentSource
    title: str | None = None
    context: str | None = None


class SearchResultBlock(WireModel):
    type: Literal["search_result"]
    title: str
    source: str
    content: list[TextBlock]


class ToolReferenceBlock(WireModel):
    type: Literal["tool_reference"]
    tool_name: str


class ThinkingBlock(WireModel):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUseBlock(WireModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class DroppedBlock(WireModel):
    """A block of a server tool, or thinking that only Anthropic can read."""

    type: str


_DROPPED = frozenset({"redacted_thinking", "server_tool_use", "mcp_tool_use", "container_upload"})
_ERROR = "must be a content block that is served here: text, image, document, tool_use, tool_result or thinking"


def _tag(block: Any) -> str | None:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        return None
    if kind in _DROPPED or (kind.endswith("_tool_result") and kind != "tool_result"):
        return "‹dropped›"
    return f"‹{kind}›"


ResultBlock = Annotated[
    Annotated[TextBlock, Tag("‹text›")]
    | Annotated[ImageBlock, Tag("‹image›")]
    | Annotated[DocumentBlock, Tag("‹document›")]
    | Annotated[SearchResultBlock, Tag("‹search_result›")]
    | Annotated[ToolReferenceBlock, Tag("‹tool_reference›")],
    Discriminator(_tag, custom_error_type="block", custom_error_message=_ERROR),
]


def _content_tag(value: Any) -> str:
    return "‹blocks›" if isinstance(value, list) else "‹string›"


class ToolResultBlock(WireModel):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[
        Annotated[str, Tag("‹string›")] | Annotated[list[ResultBlock], Tag("‹blocks›")], Discriminator(_content_tag)
    ] = ""
    is_error: bool | None = None


Block = Annotated[
    Annotated[TextBlock, Tag("‹text›")]
    | Annotated[ImageBlock, Tag("‹image›")]
    | Annotated[DocumentBlock, Tag("‹document›")]
    | Annotated[SearchResultBlock, Tag("‹search_result›")]
    | Annotated[ThinkingBlock, Tag("‹thinking›")]
    | Annotated[ToolUseBlock, Tag("‹tool_use›")]
    | Annotated[ToolResultBlock, Tag("‹tool_result›")]
    | Annotated[DroppedBlock, Tag("‹dropped›")],
    Discriminator(_tag, custom_error_type="block", custom_error_message=_ERROR),
]

Content = Annotated[Annotated[str, Tag("‹string›")] | Annotated[list[Block], Tag("‹blocks›")], Discriminator(_content_tag)]


def add_user_turn(turns: TurnBuilder, blocks: Sequence[Block], path: str) -> None:
    """Tool results first, as every template wants them, then the rest as one user turn.

    Raises:
        InvalidRequest: a block that does not belong to a user turn, or a source that cannot be read.
    """
    parts: list[Part] = []
    for index, block in enumerate(blocks):
        where = f"{path}.content[{index}]"
        if isinstance(block, ToolResultBlock):
            content = [TextBlock(text=block.content)] if isinstance(block.content, str) else block.content
            turns.tool_result(block.tool_use_id, _parts(content, f"{where}.content"))
        elif isinstance(block, (ThinkingBlock, ToolUseBlock)):
            raise InvalidRequest(f"'{where}': {block.type} belongs to the role assistant", param=where)
        else:
            parts.extend(_parts([block], where))
    if parts or not any(isinstance(block, ToolResultBlock) for block in blocks):
        turns.user(parts)


def add_assistant_turn(turns: TurnBuilder, blocks: Sequence[Block], path: str) -> None:
    """Thinking, text and calls of one assistant turn.

    Raises:
        InvalidRequest: a tool result, which belongs to the user.
    """
    for index, block in enumerate(blocks):
        where = f"{path}.content[{index}]"
        if isinstance(block, ThinkingBlock):
            turns.thinking(block.thinking)
        elif isinstance(block, ToolUseBlock):
            turns.call(ToolCall(block.id, block.name, json.dumps(block.input, ensure_ascii=False)))
        elif isinstance(block, ToolResultBlock):
            raise InvalidRequest(f"'{where}': tool_result belongs to the role user", param=where)
        else:
            turns.assistant(_parts([block], where))


def _parts(blocks: Iterable[Any], path: str) -> list[Part]:
    return [part for block in blocks for part in _block_parts(block, path)]


def _block_parts(block: Any, path: str) -> list[Part]:
    if isinstance(block, TextBlock):
        return [TextPart(block.text)]
    if isinstance(block, ImageBlock):
        return [_image(block.source, path)]
    if isinstance(block, DocumentBlock):
        return [TextPart(_document(block, path))]
    if isinstance(block, SearchResultBlock):
        return [TextPart("\n".join([block.title, block.source, *(text.text for text in block.content)]))]
    if isinstance(block, ToolReferenceBlock):
        return [TextPart(block.tool_name)]
    return []  # dropped


def _image(source: ImageSource, path: str) -> MediaPart:
    if source.type == "base64" and source.data is not None:
        return MediaPart("image", f"data:{source.media_type or 'image/png'};base64,{source.data}")
    if source.type == "url" and source.url is not None:
        return MediaPart("image", source.url)
    raise InvalidRequest(
        f"'{path}.source': send the image as base64 (data, media_type) or as url; uploaded files are not served",
        param=f"{path}.source",
    )


def _document(block: DocumentBlock, path: str) -> str:
    source = block.source
    body: str | None = None
    if source.type == "text":
        body = source.data
    elif source.type == "content" and source.content is not None:
        blocks = [source.content] if isinstance(source.content, str) else [text.text for text in source.content]
        body = "\n".join(blocks)
    if body is None:
        raise InvalidRequest(
            f"'{path}.source': only documents of type text or content are served; send the text itself",
            param=f"{path}.source",
        )
    return "\n".join(line for line in (block.title, block.context, body) if line)

"""Items: the elements of ``input`` and ``output``, as a client sends or replays them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import Discriminator, Tag

from mlxcel.core.chat import MediaPart, Part, TextPart
from mlxcel.core.errors import InvalidRequest
from mlxcel.wire.openai.messages import (
    AudioContent,
    ImageContent,
    MediaUrl,
    RefusalContent,
    TextContent,
    VideoContent,
)
from mlxcel.wire.openai.responses.capsule import unseal
from mlxcel.wire.parse import WireModel, validate


class InputImage(WireModel):
    type: Literal["input_image"]
    image_url: str | MediaUrl | None = None
    file_id: str | None = None
    detail: str | None = None


class InputFile(WireModel):
    type: Literal["input_file"]


def _part_tag(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    return "‹text›" if kind in ("text", "input_text", "output_text") else f"‹{kind}›"


ContentPart = Annotated[
    Annotated[TextContent, Tag("‹text›")]
    | Annotated[RefusalContent, Tag("‹refusal›")]
    | Annotated[InputImage, Tag("‹input_image›")]
    | Annotated[InputFile, Tag("‹input_file›")]
    | Annotated[ImageContent, Tag("‹image_url›")]
    | Annotated[VideoContent, Tag("‹video_url›")]
    | Annotated[AudioContent, Tag("‹input_audio›")],
    Discriminator(
        _part_tag,
        custom_error_type="content_part",
        custom_error_message="must be an object whose type is input_text, input_image, input_audio or output_text",
    ),
]


def _content_tag(value: Any) -> str:
    return "‹parts›" if isinstance(value, list) else "‹string›"


Content = Annotated[
    Annotated[str, Tag("‹string›")] | Annotated[list[ContentPart], Tag("‹parts›")], Discriminator(_content_tag)
]


class MessageItem(WireModel):
    type: Literal["message"] = "message"
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content

    @property
    def is_system(self) -> bool:
        """ "developer" is another word for "system"."""
        return self.role in ("system", "developer")


class FunctionCallItem(WireModel):
    type: Literal["function_call"]
    id: str | None = None
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class FunctionCallOutputItem(WireModel):
    type: Literal["function_call_output"]
    id: str | None = None
    call_id: str
    output: Content


class ReasoningPart(WireModel):
    text: str = ""


class ReasoningItem(WireModel):
    type: Literal["reasoning"]
    id: str | None = None
    summary: list[ReasoningPart] | None = None
    content: list[ReasoningPart] | None = None
    encrypted_content: str | None = None

    @property
    def text(self) -> str:
        """The thinking itself where it is there, in the clear or in our capsule; else its summary."""
        if self.content:
            return "".join(part.text for part in self.content)
        capsule = unseal("reasoning", self.encrypted_content) if self.encrypted_content else None
        if capsule is not None and isinstance(capsule.get("text"), str):
            return str(capsule["text"])
        return "\n".join(part.text for part in self.summary or ())


class CompactionItem(WireModel):
    type: Literal["compaction"]
    id: str | None = None
    encrypted_content: str


class ItemReference(WireModel):
    """Stands for a stored output item."""

    type: Literal["item_reference"]
    id: str


class UnservedItem(WireModel):
    """An item of a built-in tool."""

    type: str


_ITEM_TAGS = frozenset({"message", "function_call", "function_call_output", "reasoning", "compaction", "item_reference"})


def _item_tag(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    kind = value.get("type")
    if kind is None:
        return "‹message›" if "role" in value else None
    if not isinstance(kind, str):
        return None
    return f"‹{kind}›" if kind in _ITEM_TAGS else "‹unserved›"


Item = Annotated[
    Annotated[MessageItem, Tag("‹message›")]
    | Annotated[FunctionCallItem, Tag("‹function_call›")]
    | Annotated[FunctionCallOutputItem, Tag("‹function_call_output›")]
    | Annotated[ReasoningItem, Tag("‹reasoning›")]
    | Annotated[CompactionItem, Tag("‹compaction›")]
    | Annotated[ItemReference, Tag("‹item_reference›")]
    | Annotated[UnservedItem, Tag("‹unserved›")],
    Discriminator(
        _item_tag,
        custom_error_type="item",
        custom_error_message="must be an object with a type, or with a role for a message",
    ),
]


def _input_tag(value: Any) -> str:
    return "‹items›" if isinstance(value, list) else "‹string›"


Input = Annotated[Annotated[str, Tag("‹string›")] | Annotated[list[Item], Tag("‹items›")], Discriminator(_input_tag)]


class _Items(WireModel):
    input: list[Item]


def text_item(text: str) -> MessageItem:
    """What an ``input`` that is a string stands for."""
    return MessageItem(role="user", content=text)


def parse_items(documents: Sequence[Any]) -> list[Item]:
    """Items from JSON documents.

    Raises:
        InvalidRequest: a document that is no item.
    """
    return validate(_Items, {"input": list(documents)}).input


def load_items(stored: Sequence[bytes]) -> list[Item]:
    """Items as they were stored."""
    return parse_items([orjson.loads(raw) for raw in stored])


def resolve_references(items: Sequence[Item], find: Callable[[str], bytes | None]) -> list[Item]:
    """The items with references replaced by the stored output items that they name, where there are such."""
    found = [find(item.id) if isinstance(item, ItemReference) else None for item in items]
    return [item if raw is None else load_items([raw])[0] for item, raw in zip(items, found, strict=True)]


def dump_item(item: Item) -> dict[str, Any]:
    """The item as JSON, without what this server does not read."""
    return item.model_dump(mode="json", exclude_none=True)


def parts_of(content: str | Sequence[Any], path: str) -> list[Part]:
    """Neutral parts of a message's content or a call's output.

    Raises:
        InvalidRequest: a part that is not served.
    """
    if isinstance(content, str):
        return [TextPart(content)]
    return [_part(part, f"{path}[{index}]") for index, part in enumerate(content)]


def _part(part: Any, path: str) -> Part:
    if isinstance(part, TextContent):
        return TextPart(part.text)
    if isinstance(part, RefusalContent):
        return TextPart(part.refusal)
    if isinstance(part, AudioContent):
        return MediaPart("audio", part.input_audio.data, format=part.input_audio.format)
    if isinstance(part, InputFile):
        raise InvalidRequest(f"'{path}': input_file is not served; send the text itself as input_text", param=path)
    if isinstance(part, InputImage):
        if part.image_url is None:
            raise InvalidRequest(
                f"'{path}': uploaded files are not served; send the image in 'image_url' (an URL or a data URI)",
                param=f"{path}.image_url",
            )
        return _media("image", part.image_url, part.detail)
    if isinstance(part, ImageContent):
        return _media("image", part.image_url)
    return _media("video", part.video_url)


def _media(kind: Literal["image", "video"], source: str | MediaUrl, detail: str | None = None) -> MediaPart:
    if isinstance(source, str):
        return MediaPart(kind, source, detail=detail)
    return MediaPart(kind, source.url, detail=source.detail or detail, fps=source.fps)

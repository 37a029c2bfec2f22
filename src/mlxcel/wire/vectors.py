"""What the embedding surfaces share: the request fields and the inputs they stand for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from mlxcel.core.chat import MediaPart, TextPart
from mlxcel.core.errors import InvalidRequest
from mlxcel.core.vectors import EmbedInput, EmbedJob, TokensPart, Vector
from mlxcel.wire.parse import WireModel

MAX_INPUTS = 4096
TokenIds = list[Annotated[int, Field(ge=-(2**63), lt=2**63)]]


class TextInput(WireModel):
    type: Literal["text", "input_text"]
    text: str


class ImageUrl(WireModel):
    """Further keys are kept, so that a document can be repeated as it was sent."""

    model_config = ConfigDict(extra="allow")

    url: str


class ImageInput(WireModel):
    type: Literal["image_url"]
    image_url: ImageUrl | str


Item = str | TokenIds | TextInput | ImageInput
Inputs = str | TokenIds | list[Item]


class EmbeddingFields(WireModel):
    """Fields of all three embedding routes; ``content`` is llama-server's older name of ``input``."""

    model: str | None = None
    input: Inputs | None = None
    content: Inputs | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    instruction: str | None = None
    embd_normalize: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    user: Any = None


def to_embed_job(request: EmbeddingFields) -> EmbedJob:
    """The neutral job.

    Raises:
        InvalidRequest: no input, too many, or an unknown encoding.
    """
    name = "input" if request.input is not None else "content"
    given = request.input if request.input is not None else request.content
    if given is None:
        raise InvalidRequest('"input" or "content" must be provided', param="input")
    if request.encoding_format not in (None, "float", "base64"):
        raise InvalidRequest("'encoding_format' must be 'float' or 'base64'", param="encoding_format")
    inputs = _inputs(given)
    if not inputs:
        raise InvalidRequest(f"'{name}' must not be empty", param=name)
    if len(inputs) > MAX_INPUTS:
        raise InvalidRequest(f"'{name}' holds more than {MAX_INPUTS} inputs; send several requests", param=name)
    return EmbedJob(inputs, request.instruction, request.dimensions, request.embd_normalize)


def _inputs(given: Inputs) -> tuple[EmbedInput, ...]:
    if isinstance(given, str):
        return (TextPart(given),)
    if given and all(isinstance(item, int) for item in given):
        return (TokensPart(tuple(given)),)  # type: ignore[arg-type]
    return tuple(_input(item) for item in given if not isinstance(item, int))


def _input(item: Item) -> EmbedInput:
    match item:
        case str():
            return TextPart(item)
        case TextInput():
            return TextPart(item.text)
        case ImageInput():
            return MediaPart("image", item.image_url if isinstance(item.image_url, str) else item.image_url.url)
        case _:
            return TokensPart(tuple(item))


def components(vector: Vector) -> NDArray[np.float32]:
    """A vector's numbers in its shape, for a JSON writer that knows arrays."""
    numbers: NDArray[np.float32] = np.frombuffer(vector.data, dtype="<f4").reshape(vector.shape)
    return numbers


def check_model(wanted: str | None, served: str) -> None:
    """
    Raises:
        InvalidRequest: the request names a model that this route does not serve.
    """
    if wanted is not None and wanted != served:
        raise InvalidRequest(f"'model': this route serves {served}", param="model")

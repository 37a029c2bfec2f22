"""POST /infill."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mlxcel.wire.llama_server.fields import NativeFields
from mlxcel.wire.parse import WireModel


class ExtraInput(WireModel):
    filename: str | None = None
    text: str


class InfillRequest(NativeFields):
    """``prompt`` goes on after ``input_prefix``; the gap lies between it and ``input_suffix``."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraInput], Field(max_length=256)] | None = None
    prompt: str | None = None

"""What a tool-call format is, and what its reader knows about the request."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mlxcel.core.chat import ToolSpec
from mlxcel.text.tool_formats.source import Reader, Source

_NAMESPACES = ("functions.", "function.", "tools.")


class ToolTable:
    """The functions one request declares."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self._parameters: dict[str, Mapping[str, Any]] = {tool.name: tool.parameters for tool in tools}

    def __len__(self) -> int:
        return len(self._parameters)

    def declares(self, name: str) -> bool:
        return self.resolve(name) in self._parameters

    def resolve(self, name: str) -> str:
        """The declared name behind ``name``: a namespace in front (``functions.f``) is dropped unless it was declared so."""
        name = name.strip()
        if name in self._parameters:
            return name
        for namespace in _NAMESPACES:
            if name.startswith(namespace):
                return name[len(namespace) :]
        tail = name.rpartition(".")[2]
        return tail if tail in self._parameters else name

    def schema(self, name: str) -> Mapping[str, Any]:
        """The parameters schema of a function, empty when it is not declared."""
        return self._parameters.get(self.resolve(name), {})


@dataclass(frozen=True, slots=True)
class Marker:
    """A text that may begin a call.

    Attributes:
        text: the delimiter.
        where: "anywhere"; "line": only at the beginning of a line; "start": only as the first thing of the output.
    """

    text: str
    where: Literal["anywhere", "line", "start"] = "anywhere"


@dataclass(frozen=True, slots=True)
class JsonCallShape:
    """How a call looks in a format that wraps JSON, for building a grammar that forces one.

    A turn is ``open``, one call object or (``is_list``) an array of them, then ``close``. Further calls repeat the whole
    unless ``is_list``. A call object is ``{"name": <name>, <arguments_key>: <object>}``, keys in this order.
    """

    open: str
    close: str
    arguments_key: Literal["arguments", "parameters"]
    is_list: bool = False
    separator: str = ""  # between two calls of one turn, outside a list


def new_call_id() -> str:
    """A fresh id in the form OpenAI clients know."""
    return f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One family's way of writing calls.

    Attributes:
        name: as ``--tool-call-parser`` takes it.
        read: reads one region: called after a marker was consumed, it yields pieces and returns where the region ends.
        markers: where a region may begin.
        noise: delimiters around calls without meaning of their own (section brackets); they are dropped from the text.
        frames: delimiters around a plain answer; they are dropped whether or not the request has tools.
        delimiters: every other delimiter inside regions, so that the detokenizer shows them and malformed calls can be
            stripped of them.
        owns_output: the reader takes the whole output from its first character and tells the channels apart itself.
        ends_thinking: a marker or section that ends an unclosed thinking block.
        shape: set where a forced call can be expressed as a grammar.
        new_id: makes the id of a call for which the model gave none.
        warning: reported once for every request that declares tools.
    """

    name: str
    read: Callable[[Source, str, ToolTable], Reader[None]]
    markers: tuple[Marker, ...] = ()
    noise: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    delimiters: tuple[str, ...] = ()
    owns_output: bool = False
    ends_thinking: tuple[str, ...] = ()
    shape: JsonCallShape | None = None
    new_id: Callable[[], str] = new_call_id
    warning: str | None = None

    @property
    def marker_texts(self) -> frozenset[str]:
        """Every delimiter of the format, longer than one character, as a vocabulary might hold it."""
        texts = (*(marker.text for marker in self.markers), *self.noise, *self.frames, *self.delimiters)
        return frozenset(text for text in texts if len(text) > 1)

"""Tools of a Responses request: functions, namespaces of functions, and the built-in tools that no local server can run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from mlxcel.core.chat import ToolChoice, ToolSpec
from mlxcel.core.errors import InvalidRequest
from mlxcel.wire.context import ServerFacts
from mlxcel.wire.parse import WireModel
from mlxcel.wire.tools import checked_tools


class FunctionTool(WireModel):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class BuiltInTool(WireModel):
    type: str


def _tag(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        return None
    return f"‹{kind}›" if kind in ("function", "namespace") else "‹built-in›"


_ERROR = "must be an object with a type, such as function"

MemberTool = Annotated[
    Annotated[FunctionTool, Tag("‹function›")] | Annotated[BuiltInTool, Tag("‹built-in›")],
    Discriminator(
        lambda value: "‹built-in›" if (tag := _tag(value)) == "‹namespace›" else tag,
        custom_error_type="tool",
        custom_error_message=_ERROR,
    ),
]


class NamespaceTool(WireModel):
    """Functions under a common name, as agents declare those of one MCP server."""

    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: list[MemberTool] = Field(default_factory=list)


Tool = Annotated[
    Annotated[FunctionTool, Tag("‹function›")]
    | Annotated[NamespaceTool, Tag("‹namespace›")]
    | Annotated[BuiltInTool, Tag("‹built-in›")],
    Discriminator(_tag, custom_error_type="tool", custom_error_message=_ERROR),
]


class FunctionChoice(WireModel):
    type: str
    name: str = ""
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSet:
    """The declared functions.

    Attributes:
        specs: for the model, every namespace flattened.
        origins: (namespace, name) by the name that the model sees, of functions that were in a namespace.
        echo: the tools as the response object shows them.
        ignored: types of the built-in tools that were left out.
    """

    specs: tuple[ToolSpec, ...] = ()
    origins: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    echo: tuple[dict[str, Any], ...] = ()
    ignored: tuple[str, ...] = ()

    def flat_name(self, namespace: str | None, name: str) -> str:
        """The name that the model sees. A function that is no longer declared keeps its own."""
        if namespace is None:
            return name
        return next((flat for flat, origin in self.origins.items() if origin == (namespace, name)), name)

    def origin(self, flat_name: str) -> tuple[str | None, str]:
        """Namespace and name as the client declared them."""
        return self.origins.get(flat_name, (None, flat_name))


def read_tools(tools: Sequence[Tool], facts: ServerFacts) -> ToolSet:
    """The functions among the tools.

    A function of a namespace keeps its own name where no other has it, and is else called ``namespace__name``.

    Raises:
        InvalidRequest: a built-in tool in strict mode, too many functions, or one without a name.
    """
    ignored: list[str] = []
    functions: list[tuple[str | None, FunctionTool]] = []
    for path, namespace, tool in _flattened(tools):
        if isinstance(tool, FunctionTool):
            functions.append((namespace, tool))
        elif facts.compat == "lenient":
            ignored.append(tool.type)
        else:
            raise InvalidRequest(
                f"'{path}.type': only function tools are served, not '{tool.type[:64]}'; send functions, or start the "
                "server with --compat lenient to have the others left out",
                param=f"{path}.type",
            )
    count = Counter(tool.name for _, tool in functions)
    specs: list[ToolSpec] = []
    origins: dict[str, tuple[str, str]] = {}
    for namespace, tool in functions:
        name = tool.name if namespace is None or count[tool.name] == 1 else f"{namespace}__{tool.name}"
        if namespace is not None:
            origins[name] = (namespace, tool.name)
        specs.append(ToolSpec(name, tool.description, tool.parameters or {}, tool.strict))
    echo = tuple(shown for tool in tools if (shown := _shown(tool)) is not None)
    return ToolSet(checked_tools(specs), origins, echo, tuple(ignored))


def _flattened(tools: Sequence[Tool]) -> Iterator[tuple[str, str | None, FunctionTool | BuiltInTool]]:
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        if isinstance(tool, NamespaceTool):
            yield from ((f"{path}.tools[{place}]", tool.name, member) for place, member in enumerate(tool.tools))
        else:
            yield path, None, tool


def _shown(tool: Tool) -> dict[str, Any] | None:
    if isinstance(tool, FunctionTool):
        return tool.model_dump()
    if isinstance(tool, NamespaceTool):
        members = [member.model_dump() for member in tool.tools if isinstance(member, FunctionTool)]
        return {"type": "namespace", "name": tool.name, "description": tool.description or "", "tools": members}
    return None


def read_tool_choice(choice: str | FunctionChoice | None, tools: ToolSet) -> ToolChoice:
    """Neutral tool choice; whether the function is declared is checked where all surfaces check it.

    Raises:
        InvalidRequest: an unknown word, another kind of tool, or an empty name.
    """
    if choice is None or choice == "auto":
        return ToolChoice()
    if choice == "none":
        return ToolChoice("none")
    if choice == "required":
        return ToolChoice("required")
    if isinstance(choice, str):
        raise InvalidRequest("'tool_choice': must be auto, none, required or a function", param="tool_choice")
    if choice.type != "function":
        raise InvalidRequest("'tool_choice.type': only function is served", param="tool_choice.type")
    if not choice.name.strip():
        raise InvalidRequest("'tool_choice.name' must name the function", param="tool_choice.name")
    return ToolChoice("named", tools.flat_name(choice.namespace, choice.name))

"""Tool declarations: the checks that every dialect shares."""

from __future__ import annotations

from collections.abc import Sequence

from mlxcel.core.chat import ToolSpec
from mlxcel.core.errors import InvalidRequest

MAX_TOOLS = 512


def checked_tools(tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """The tools themselves.

    Raises:
        InvalidRequest: too many tools, or one without a name.
    """
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"'tools': at most {MAX_TOOLS} tools", param="tools")
    if any(not tool.name.strip() for tool in tools):
        raise InvalidRequest("'tools': every function needs a name", param="tools")
    return tuple(tools)

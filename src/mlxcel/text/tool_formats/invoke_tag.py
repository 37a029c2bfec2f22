"""Calls of the form ``<invoke name="f"><parameter name="a">1</parameter></invoke>``: MiniMax M2, DeepSeek V3.2, ATEM."""

from __future__ import annotations

from mlxcel.text.tool_formats.base import Marker, ToolFormat, ToolTable
from mlxcel.text.tool_formats.source import Reader, Source, read_name
from mlxcel.text.tool_formats.tagged import TagDialect, read_tagged_call


class InvokeDialect:
    """One family's tags.

    Args:
        prefix: stands in front of every tag's name (``atem:``).
        sections: names of the tags around all calls.
        typed: parameters say whether they are text (``<parameter name="a" string="true">``).
    """

    def __init__(self, prefix: str = "", sections: tuple[str, ...] = (), *, typed: bool = False) -> None:
        self.open = f'<{prefix}invoke name="'
        self.sections = tuple(tag for section in sections for tag in (f"<{section}>", f"</{section}>"))
        self._tags = TagDialect(
            key_open=f'<{prefix}parameter name="',
            key_close='" string="false">' if typed else '">',
            text_key_close='" string="true">' if typed else "",
            value_close=f"</{prefix}parameter>",
            ends=(f"</{prefix}invoke>", *self.sections),
        )

    @property
    def delimiters(self) -> tuple[str, ...]:
        return (self._tags.key_open, self._tags.value_close, *self._tags.ends)

    def read(self, source: Source, marker: str, tools: ToolTable) -> Reader[None]:
        """Read what follows ``<invoke name="``."""
        header = yield from read_name(source, '">')
        if header is not None:
            yield from read_tagged_call(source, tools, self._tags, header[0])


_MINIMAX = InvokeDialect(sections=("minimax:tool_call",))
MINIMAX_M2 = ToolFormat(
    name="minimax_m2",
    read=_MINIMAX.read,
    markers=(Marker(_MINIMAX.open),),
    noise=_MINIMAX.sections,
    delimiters=_MINIMAX.delimiters,
)
_DSML = "｜DSML｜"
_DEEPSEEK = InvokeDialect(_DSML, sections=(f"{_DSML}function_calls", f"{_DSML}tool_calls"), typed=True)
DEEPSEEK_V32 = ToolFormat(
    name="deepseek_v3.2",
    read=_DEEPSEEK.read,
    markers=(Marker(_DEEPSEEK.open),),
    noise=_DEEPSEEK.sections,
    delimiters=(*_DEEPSEEK.delimiters, _DSML),  # the prefix is a token of its own
)

"""GET and POST /lora-adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, RootModel

from mlxcel.wire.llama_server.fields import LoraScale

_MAX_SCALES = 1024


class LoraScales(RootModel[Annotated[list[LoraScale], Field(max_length=_MAX_SCALES)]]):
    """Request body: the scales of adapters by id; the others drop to 0."""

    @property
    def pairs(self) -> list[tuple[int, float]]:
        """Id and scale of each entry, in order."""
        return [(entry.id, entry.scale) for entry in self.root]


def render_adapters(adapters: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    """One object for each path and scale. The last two fields belong to adapters that prompts switch on; PEFT's do not."""
    return [
        {"id": number, "path": path, "scale": scale, "task_name": "", "prompt_prefix": ""}
        for number, (path, scale) in enumerate(adapters)
    ]

"""POST /v1/chat/completions/control: a word to an answer that is being written."""

from __future__ import annotations

from typing import Any, Literal

from mlxcel.wire.openai.chat import ID_PREFIX
from mlxcel.wire.parse import WireModel


class ControlRequest(WireModel):
    """Request body. ``id`` is the answer's own, as its chunks show it."""

    id: str
    action: Literal["reasoning_end"]

    @property
    def request_id(self) -> str:
        """The id without the prefix of this surface."""
        return self.id.removeprefix(ID_PREFIX)


def render_control(*, success: bool) -> dict[str, Any]:
    """The answer, also for an id that names nothing."""
    if success:
        return {"success": True}
    return {"success": False, "message": "no answer of this id is being written with reasoning_control: true"}

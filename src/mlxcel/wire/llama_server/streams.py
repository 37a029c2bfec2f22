"""Bodies of the routes for resumable streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from mlxcel.stores.streams import StreamStatus
from mlxcel.wire.parse import WireModel

MAX_LOOKUPS = 256


class LookupRequest(WireModel):
    conversation_ids: Annotated[list[str], Field(max_length=MAX_LOOKUPS)]


def render_lookup(found: Sequence[StreamStatus]) -> list[dict[str, Any]]:
    """One object for each stream that exists."""
    return [
        {
            "conversation_id": status.conversation_id,
            "is_done": status.is_done,
            "total_bytes": status.total_bytes,
            "started_at": int(status.started_s),
            "completed_at": None if status.completed_s is None else int(status.completed_s),
        }
        for status in found
    ]

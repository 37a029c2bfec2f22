"""POST /slots/{id}?action=..."""

from __future__ import annotations

from typing import Any

from mlxcel.wire.parse import WireModel


class SlotFileRequest(WireModel):
    """Request body of the actions save and restore."""

    filename: str


def render_saved(slot: int, filename: str, tokens: int, size_bytes: int, elapsed_s: float) -> dict[str, Any]:
    """The answer to the action save."""
    return {
        "id_slot": slot,
        "filename": filename,
        "n_saved": tokens,
        "n_written": size_bytes,
        "timings": {"save_ms": elapsed_s * 1000},
    }


def render_restored(slot: int, filename: str, tokens: int, size_bytes: int, elapsed_s: float) -> dict[str, Any]:
    """The answer to the action restore."""
    return {
        "id_slot": slot,
        "filename": filename,
        "n_restored": tokens,
        "n_read": size_bytes,
        "timings": {"restore_ms": elapsed_s * 1000},
    }

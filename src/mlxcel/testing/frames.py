"""Reading event streams in tests."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson


class Frame(NamedTuple):
    """One server-sent event; ``data`` is None for a comment."""

    event: str | None
    data: Any


def read_frames(stream: bytes) -> list[Frame]:
    """All events of a stream. Data that is not JSON (``[DONE]``) is kept as text.

    Raises:
        ValueError: bytes that are no complete frames.
    """
    if stream and not stream.endswith(b"\n\n"):
        raise ValueError("the stream does not end with a complete frame")
    return [_frame(block) for block in stream.decode().split("\n\n")[:-1]]


def _frame(block: str) -> Frame:
    fields: dict[str, str] = {}
    for line in block.split("\n"):
        name, separator, value = line.partition(":")
        if not separator or (name in fields):
            raise ValueError(f"not a frame: {block!r}")
        fields[name] = value.removeprefix(" ")
    if "data" not in fields:
        return Frame(fields.get("event"), None)
    data = fields["data"]
    return Frame(fields.get("event"), orjson.loads(data) if data != "[DONE]" else data)

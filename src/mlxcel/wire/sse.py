"""Server-sent event frames (WHATWG HTML, section 9.2)."""

from __future__ import annotations

import orjson

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


def frame(data: object, event: str | None = None) -> bytes:
    """One frame with a JSON payload; JSON holds no raw newline, so one ``data`` line always suffices."""
    head = b"" if event is None else b"event: " + event.encode() + b"\n"
    return head + b"data: " + orjson.dumps(data) + b"\n\n"

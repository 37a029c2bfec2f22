"""The contract of a stream writer: output events in, frames out."""

from __future__ import annotations

from typing import Protocol

from mlxcel.core.errors import MlxcelError
from mlxcel.core.events import OutputEvent


class StreamWriter(Protocol):
    """Turns one answer's events into a dialect's frames. Holds the state of that one stream and never awaits."""

    @property
    def keep_alive(self) -> bytes:
        """The frame sent while nothing else is."""

    def open(self) -> bytes:
        """Frames sent as soon as the request is admitted; may be empty."""

    def on(self, event: OutputEvent) -> bytes:
        """Frames for one event; may be empty. The frames of ``Completed`` end the stream."""

    def fail(self, error: MlxcelError) -> bytes:
        """Frames that report an error in a stream that has begun, and end it."""

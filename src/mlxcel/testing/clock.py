"""A clock that only moves when told to."""

from __future__ import annotations


class FakeClock:
    """Stands in for ``time.monotonic`` and ``time.sleep``.

    ``clock()`` returns the seconds, ``clock.sleep(s)`` and ``clock.advance(s)`` move it on at once.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self.now_s = start_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Move on by ``seconds`` (>= 0)."""
        if seconds < 0:
            raise ValueError("a monotonic clock does not go back")
        self.now_s += seconds

    def sleep(self, seconds: float) -> None:
        """Like ``advance``, under the name that replaces ``time.sleep``."""
        self.advance(seconds)

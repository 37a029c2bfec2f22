"""The LoRA adapters of a served model and their scales, which clients may change while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Scales = tuple[tuple[int, float], ...]


class LiveAdapters:
    """The scales in force. A generation takes them as they are when it is admitted; later changes leave it alone.

    Args:
        adapters: path and scale at the start of each, by id.
    """

    def __init__(self, adapters: Sequence[tuple[str, float]] = ()) -> None:
        self._paths = tuple(path for path, _ in adapters)
        self._scales = tuple(scale for _, scale in adapters)

    def listed(self) -> list[tuple[str, float]]:
        """Path and scale of every adapter, by id."""
        return list(zip(self._paths, self._scales, strict=True))

    def set(self, scales: Iterable[tuple[int, float]]) -> None:
        """New scales for the generations to come: those not named drop to 0, and unknown ids are ignored."""
        self._scales = self._complete(scales)

    def in_force(self, wanted: Scales | None) -> Scales:
        """The scale of every adapter for one request.

        Args:
            wanted: the request's own scales, read as :meth:`set` reads them; None for the live ones.
        """
        return tuple(enumerate(self._scales if wanted is None else self._complete(wanted)))

    def _complete(self, scales: Iterable[tuple[int, float]]) -> tuple[float, ...]:
        named = dict(scales)
        return tuple(named.get(number, 0.0) for number in range(len(self._paths)))

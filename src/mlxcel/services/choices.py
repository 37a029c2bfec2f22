"""Several answers to one request, as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

from mlxcel.core.events import ChoiceEvent, Completed
from mlxcel.services.generation import Answer


class Choices:
    """Merges answers in the order in which their events come. Must be made on the event loop."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = tuple(answers)
        self._queue: asyncio.Queue[ChoiceEvent | Exception | None] = asyncio.Queue()
        self._open = len(self._answers)
        self._tasks = [asyncio.ensure_future(self._forward(index, answer)) for index, answer in enumerate(self._answers)]

    @property
    def prompt_tokens(self) -> int:
        return self._answers[0].prompt_tokens

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChoiceEvent:
        while self._open:
            item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            if item is not None:
                return item
            self._open -= 1
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End every generation; may be called again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for answer in self._answers:
            await answer.aclose()

    async def _forward(self, index: int, answer: Answer) -> None:
        try:
            async for event in answer:
                self._queue.put_nowait(ChoiceEvent(index, event))
            self._queue.put_nowait(None)
        except Exception as error:
            self._queue.put_nowait(error)


async def fold(running: Answer | Choices) -> list[Completed]:
    """Read answers to their end and close them; one ``Completed`` a choice, in order."""
    completed: dict[int, Completed] = {}
    try:
        async for event in running:
            index, inner = (event.index, event.event) if isinstance(event, ChoiceEvent) else (0, event)
            if isinstance(inner, Completed):
                completed[index] = inner
    finally:
        await running.aclose()
    return [completed[index] for index in sorted(completed)]

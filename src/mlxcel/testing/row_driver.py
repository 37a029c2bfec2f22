"""Drives a model runner without an engine: feeds prompts in pieces and decodes several rows at once, nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mlxcel.core.ports import ModelRunner
from mlxcel.core.sampling import SamplingParams
from mlxcel.core.work import RowSpec, RowStep, StepPlan

GREEDY = SamplingParams(temperature=0.0)


@dataclass(slots=True)
class _Row:
    row_id: int
    prompt_ids: tuple[int, ...]
    fed_tokens: int = 0
    output_ids: list[int] = field(default_factory=list)

    def next_step(self, chunk_tokens: int) -> RowStep:
        if self.fed_tokens < len(self.prompt_ids):
            piece = self.prompt_ids[self.fed_tokens : self.fed_tokens + chunk_tokens]
            last = self.fed_tokens + len(piece) == len(self.prompt_ids)
            return RowStep(self.row_id, piece, self.fed_tokens, sample=last)
        return RowStep(self.row_id, (self.output_ids[-1],), self.fed_tokens)


class RowDriver:
    """Generates with a runner. Blocks are handed out in a scattered order, so that nothing relies on neighbours."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        count = runner.info.block_count
        stride = next((step for step in (7, 5, 3, 2) if count % step), 1)
        self._free_blocks = [index * stride % count for index in range(count)]
        self._next_row_id = 0

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        *,
        chunk_tokens: int = 1 << 30,
        sampling: SamplingParams = GREEDY,
        adapters: Sequence[tuple[tuple[int, float], ...]] = (),
    ) -> list[list[int]]:
        """Run all prompts together for exactly ``new_tokens`` each, prompts in pieces of ``chunk_tokens``.

        Args:
            adapters: LoRA scales of each row; empty for none.

        Raises:
            Exception: the error of a row that failed.
        """
        rows: list[_Row] = []
        held: list[int] = []
        for prompt, scales in zip(prompts, adapters or [()] * len(prompts), strict=True):
            blocks = self._take_blocks(len(prompt) + new_tokens)
            held.extend(blocks)
            rows.append(_Row(self._next_row_id, tuple(prompt)))
            self._runner.open(RowSpec(self._next_row_id, tuple(prompt), sampling, adapters=scales, blocks=blocks))
            self._next_row_id += 1
        while active := [row for row in rows if len(row.output_ids) < new_tokens]:
            steps = [row.next_step(chunk_tokens) for row in active]
            for row, step, result in zip(active, steps, self._runner.run(StepPlan(tuple(steps))).rows, strict=True):
                if result.error is not None:
                    raise result.error
                row.fed_tokens += len(step.token_ids)
                row.output_ids.extend(result.token_ids)
        for row in rows:
            self._runner.close(row.row_id)
        self._free_blocks.extend(held)
        return [row.output_ids for row in rows]

    def _take_blocks(self, token_count: int) -> tuple[int, ...]:
        if not self._runner.info.block_count:
            return ()
        count = -(-token_count // self._runner.info.block_tokens)
        taken, self._free_blocks = self._free_blocks[:count], self._free_blocks[count:]
        return tuple(taken)

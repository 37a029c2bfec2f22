"""Compares a way of running a model with the model's own plain forward pass, once, while it loads.

Two short prompts are fed in uneven pieces beside each other: state that leaks between rows, is lost between pieces or
belongs to a wrong position shows in the logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from mlxcel.runners.generate.batch import Decoder, RaggedBatch

PROMPT_TOKENS = (24, 11)
PIECES = ((13, 5), (9, 4), (1, 1), (1, 1))  # tokens of each prompt fed by each step
_TOLERANCE = {torch.float32: 1e-3}  # relative, of a whole logit vector
_ROUGH_TOLERANCE = 0.1  # 16-bit arithmetic
_ROUGH_SHARE = 0.75  # share of positions that must agree: a rounding error may flip an expert now and then


@dataclass(frozen=True, slots=True)
class Reference:
    """Prompts and the logits of a plain forward pass over each, float32 [tokens, vocab]."""

    prompts: tuple[tuple[int, ...], ...]
    logits: tuple[torch.Tensor, ...]
    dtype: torch.dtype

    @classmethod
    @torch.inference_mode()
    def of(cls, model: PreTrainedModel) -> Reference:
        """Run the model the plain way, without a cache."""
        vocabulary = min(int(model.config.get_text_config(decoder=True).vocab_size), 1000)
        generator = torch.Generator().manual_seed(20)
        low = min(3, vocabulary - 1)
        prompts = [torch.randint(low, vocabulary, (count,), generator=generator) for count in PROMPT_TOKENS]
        logits = tuple(
            model(input_ids=prompt[None].to(model.device), use_cache=False).logits[0].float().cpu() for prompt in prompts
        )
        return cls(tuple(tuple(prompt.tolist()) for prompt in prompts), logits, model.dtype)

    def errors(self, row: int, start: int, logits: torch.Tensor) -> torch.Tensor:
        """Relative error of logits [tokens, vocab] that belong to positions ``start`` onward of a prompt: [tokens]."""
        expected = self.logits[row][start : start + len(logits)]
        scale = expected.norm(dim=-1).clamp_min(1e-6)
        errors: torch.Tensor = (logits.float().cpu() - expected).norm(dim=-1) / scale
        return errors

    def accepts(self, errors: torch.Tensor) -> bool:
        """True when relative errors [positions] are within what the arithmetic explains; NaN never is."""
        exact = _TOLERANCE.get(self.dtype)
        if exact is not None:
            return bool((errors <= exact).all())
        return bool((errors <= _ROUGH_TOLERANCE).float().mean() >= _ROUGH_SHARE)


def check_ragged(decoder: Decoder, reference: Reference) -> None:
    """Feed both prompts together, in pieces, through the paged cache.

    Raises:
        ValueError: the logits are not those of the plain forward pass.
    """
    block_tokens = decoder.block_tokens
    widths = [-(-count // block_tokens) for count in PROMPT_TOKENS]
    if sum(widths) > decoder.block_count:
        raise ValueError(f"its KV cache of {decoder.block_count} blocks is too small to check the batched path")
    tables = torch.zeros(len(widths), max(widths), dtype=torch.int32)
    first = 0
    for row, width in enumerate(widths):
        tables[row, :width] = torch.arange(first, first + width, dtype=torch.int32)
        first += width
    starts = [0] * len(widths)
    errors = []
    for pieces in PIECES:
        logits = decoder.forward(_batch(reference, starts, pieces, tables))
        for row, part in enumerate(torch.split(logits, list(pieces))):
            errors.append(reference.errors(row, starts[row], part))
            starts[row] += pieces[row]
    if not reference.accepts(torch.cat(errors)):
        worst = float(torch.cat(errors).max())
        raise ValueError(f"batched logits differ from its plain forward pass (relative error {worst:.2g})")


def _batch(reference: Reference, starts: list[int], pieces: tuple[int, ...], tables: torch.Tensor) -> RaggedBatch:
    tokens: list[int] = []
    positions: list[int] = []
    for prompt, start, count in zip(reference.prompts, starts, pieces, strict=True):
        tokens.extend(prompt[start : start + count])
        positions.extend(range(start, start + count))
    bounds = torch.tensor([0, *pieces], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    ends = [start + count for start, count in zip(starts, pieces, strict=True)]
    return RaggedBatch(
        token_ids=torch.tensor(tokens, dtype=torch.int32),
        positions=torch.tensor(positions, dtype=torch.int32),
        row_starts=bounds,
        context_lens=torch.tensor(ends, dtype=torch.int32),
        block_tables=tables,
        logit_indices=torch.arange(len(tokens), dtype=torch.int32),
    )

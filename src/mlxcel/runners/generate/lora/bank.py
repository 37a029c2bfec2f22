"""Low-rank updates during a step: which tokens use which adapter, and what it adds to a linear layer's output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from mlxcel.core.errors import StartupError
from mlxcel.runners.generate.batch import RaggedBatch
from mlxcel.runners.generate.lora.files import Adapter, LowRank, shown

Scales = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class _Use:
    """One adapter in the current step. ``tokens`` None stands for all, with one scale; else ``scales`` is [tokens, 1]."""

    adapter: int
    tokens: torch.Tensor | None
    scales: torch.Tensor


class AdapterBank:
    """The adapters of one loaded model.

    Matrices are claimed while the model is built; :meth:`check_claimed` then tells which the model does not have. Before
    each forward pass :meth:`begin` says which tokens use what.
    """

    def __init__(self, adapters: Sequence[Adapter], dtype: torch.dtype, device: torch.device) -> None:
        self._adapters = tuple(adapters)
        self._dtype = dtype
        self._device = device
        self._claimed: set[str] = set()
        self._uses: list[_Use] = []
        self._output_uses: list[_Use] = []

    @property
    def count(self) -> int:
        """How many adapters there are."""
        return len(self._adapters)

    @property
    def names(self) -> frozenset[str]:
        """Every matrix that an adapter changes."""
        return frozenset(name for adapter in self._adapters for name in adapter.updates)

    def claim(self, parts: Sequence[tuple[str, tuple[int, ...]]]) -> dict[int, LowRank]:
        """Updates, by adapter, of a layer made of matrices that read the same input, their outputs side by side.

        Args:
            parts: name and shape (out, in) of each matrix.

        Raises:
            StartupError: an update has another shape than its matrix.
        """
        self._claimed.update(name for name, _ in parts)
        found = ((number, self._fused(adapter, parts)) for number, adapter in enumerate(self._adapters))
        return {number: update for number, update in found if update is not None}

    def check_claimed(self) -> None:
        """
        Raises:
            StartupError: an adapter changes matrices that the model does not have.
        """
        for adapter in self._adapters:
            missing = [name for name in adapter.updates if name not in self._claimed]
            if missing:
                raise StartupError(f"--lora: {adapter.path} changes what this model does not have: {shown(missing)}")

    def begin(self, batch: RaggedBatch) -> None:
        """Start a step over many rows."""
        rows = batch.row_adapters
        if len(set(rows)) <= 1:
            self.begin_row(rows[0] if rows else ())
            return
        counts = (batch.row_starts[1:] - batch.row_starts[:-1]).long()
        by_row = torch.zeros(len(rows), len(self._adapters))
        for row, scales in enumerate(rows):
            for adapter, scale in scales:
                by_row[row, adapter] = scale
        by_token = by_row.repeat_interleave(counts, dim=0)
        self._uses = self._uses_of(by_token)
        self._output_uses = self._uses_of(by_token[batch.logit_indices.long()])

    def begin_row(self, scales: Scales) -> None:
        """Start a step in which every token has the same scales."""
        self._uses = self._output_uses = [
            _Use(adapter, None, torch.tensor(scale, dtype=self._dtype, device=self._device))
            for adapter, scale in scales
            if scale != 0.0
        ]

    def add(self, updates: Mapping[int, LowRank], x: torch.Tensor, y: torch.Tensor, *, outputs_only: bool) -> torch.Tensor:
        """``y`` [tokens, out] with the updates that this step uses on the input ``x`` [tokens, in].

        Args:
            outputs_only: the layer runs only for the tokens whose logits are wanted.
        """
        for use in self._output_uses if outputs_only else self._uses:
            update = updates.get(use.adapter)
            if update is None:
                continue
            if use.tokens is None:
                y = y + F.linear(F.linear(x, update.a) * use.scales, update.b)
            else:
                delta = F.linear(F.linear(x[use.tokens], update.a) * use.scales, update.b)
                y = y.index_add(0, use.tokens, delta)
        return y

    def _uses_of(self, scales: torch.Tensor) -> list[_Use]:
        """Uses from a table [tokens, adapters]."""
        uses = []
        for adapter in range(scales.shape[1]):
            tokens = scales[:, adapter].nonzero()[:, 0]
            if len(tokens):
                chosen = scales[tokens, adapter, None].to(self._device, self._dtype)
                uses.append(_Use(adapter, tokens.to(self._device), chosen))
        return uses

    def _fused(self, adapter: Adapter, parts: Sequence[tuple[str, tuple[int, ...]]]) -> LowRank | None:
        """The parts' updates as one: A stacked, B block by block on the diagonal."""
        present = [adapter.updates.get(name) for name, _ in parts]
        for (name, shape), update in zip(parts, present, strict=True):
            if update is not None and (update.b.shape[0], update.a.shape[1]) != shape:
                found = (update.b.shape[0], update.a.shape[1])
                raise StartupError(f"--lora: {adapter.path}: the update of {name} is {found}, the matrix {shape}")
        known = [update for update in present if update is not None]
        if not known:
            return None
        b = torch.zeros(sum(shape[0] for _, shape in parts), sum(update.a.shape[0] for update in known))
        row = column = 0
        for (_, shape), update in zip(parts, present, strict=True):
            if update is not None:
                rank = update.a.shape[0]
                b[row : row + shape[0], column : column + rank] = update.b
                column += rank
            row += shape[0]
        a = torch.cat([update.a for update in known])
        return LowRank(a.to(self._device, self._dtype), b.to(self._device, self._dtype))

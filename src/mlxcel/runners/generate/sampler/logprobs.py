"""Log-probabilities as clients see them: of the model's own distribution, before mask, penalties and temperature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mlxcel.core.events import TokenLogprob
from mlxcel.runners.generate.sampler import rowwise
from mlxcel.runners.generate.sampler.row import Row


@dataclass(frozen=True, slots=True)
class RawLogits:
    """Copies of the logits of the rows that want log-probabilities, taken before anything changes them.

    Attributes:
        places: their places in the batch.
        logits: float32 [rows wanted, vocab].
    """

    places: tuple[int, ...]
    logits: torch.Tensor

    @classmethod
    def of(cls, logits: torch.Tensor, rows: Sequence[Row]) -> RawLogits | None:
        """None when no row wants any, which costs nothing."""
        places = tuple(place for place, row in enumerate(rows) if row.params.top_logprobs >= 0)
        if not places:
            return None
        return cls(places, logits[torch.tensor(places, device=logits.device)])

    def report(self, rows: Sequence[Row], ids: Sequence[int]) -> dict[int, TokenLogprob]:
        """For each wanted place the chosen token's log-probability and its best alternatives.

        Args:
            rows: the batch.
            ids: the batch's chosen tokens.
        """
        wanted = [rows[place].params.top_logprobs for place in self.places]
        total = rowwise.log_total(self.logits)
        chosen = torch.tensor([ids[place] for place in self.places], device=self.logits.device)[:, None]
        own = (self.logits.gather(1, chosen) - total).squeeze(1).tolist()
        best = torch.topk(self.logits, min(max(wanted), self.logits.shape[1]))
        top_ids = best.indices.tolist()
        top_values = (best.values - total).tolist()
        return {
            place: TokenLogprob(ids[place], own[i], tuple(zip(top_ids[i][:count], top_values[i][:count], strict=True)))
            for i, (place, count) in enumerate(zip(self.places, wanted, strict=True))
        }

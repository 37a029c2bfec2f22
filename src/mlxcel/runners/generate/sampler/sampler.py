"""Chooses the next token of every row of a batch, each row by its own settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mlxcel.core.errors import GenerationFailed
from mlxcel.core.events import TokenLogprob
from mlxcel.core.work import RowResult, RowSpec
from mlxcel.runners.generate.sampler import adjust
from mlxcel.runners.generate.sampler.chain import choose
from mlxcel.runners.generate.sampler.logprobs import RawLogits
from mlxcel.runners.generate.sampler.row import Row
from mlxcel.runners.generate.sampler.settings import Batch


@dataclass(frozen=True, slots=True)
class Draw:
    """One row's wish: a token by its settings, or ``forced_id`` as it is.

    ``constrained`` masks the draw by the row's constraint, which then accepts the token (a forced one too).
    """

    row_id: int
    forced_id: int | None = None
    constrained: bool = False


class Sampler:
    """The sampling chain: mask, token bias, penalties, top-n-sigma, p-less, typical, top-k, top-p, min-p, XTC, temperature,
    draw. Every truncation but p-less looks at the untempered distribution.

    A row's draws depend on its logits, settings, seed and position only: the same alone, among strangers, and after others
    have run. Not thread-safe; the owner thread calls it.

    Args:
        vocab_size: columns of the logits.
        device: where the logits are.
    """

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu") -> None:
        self._vocab_size = vocab_size
        self._device = torch.device(device)
        self._rows: dict[int, Row] = {}
        self._mask = adjust.Mask(vocab_size, self._device)
        self._batch: Batch | None = None

    def open(self, row: RowSpec) -> None:
        """Start a row's random stream and its penalty history (from ``prompt_ids``)."""
        self._rows[row.row_id] = Row.of(row, self._vocab_size)

    def close(self, row_id: int) -> None:
        """Forget a row. Unknown ids are ignored."""
        self._rows.pop(row_id, None)
        self._batch = None

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, draws: Sequence[Draw]) -> list[RowResult]:
        """Choose one token a row and append it to the row's history.

        Args:
            logits: float32 [rows, vocab]; changed in place.
            draws: one a row of ``logits``; a row occurs once.

        Returns:
            One result a draw, in order. ``error`` is a :class:`GenerationFailed` when the logits are not numbers, nothing
            may follow, or the constraint refuses the token; what the constraint raised otherwise.

        Raises:
            KeyError: a row is not open.
            ValueError: the shapes do not fit.
        """
        if logits.shape != (len(draws), self._vocab_size):
            raise ValueError(f"logits {list(logits.shape)} do not fit {len(draws)} draws over {self._vocab_size} tokens")
        if not draws:
            return []
        batch = self._batch_of(tuple(self._rows[draw.row_id] for draw in draws))
        raw = RawLogits.of(logits, batch.rows)
        masked = [
            (place, constraint)
            for place, draw in enumerate(draws)
            if draw.constrained and draw.forced_id is None and (constraint := batch.rows[place].constraint) is not None
        ]
        errors = self._mask.apply(logits, masked) if masked else {}
        adjust.add_bias(logits, batch)
        adjust.penalise_counts(logits, batch)
        adjust.penalise_repeats(logits, batch)
        chosen = choose(logits, batch)
        ids = [int(chosen.ids[place]) if draw.forced_id is None else draw.forced_id for place, draw in enumerate(draws)]
        for place, draw in enumerate(draws):
            if draw.forced_id is None and not chosen.found[place]:
                errors.setdefault(place, _nothing_to_draw(logits[place]))
        reports = raw.report(batch.rows, ids) if raw is not None else {}
        results: list[RowResult] = []
        for place, draw in enumerate(draws):
            row = batch.rows[place]
            error = errors.get(place) or _settle(row, draw, ids[place], float(chosen.surprise_limits[place]))
            if error is not None:
                results.append(RowResult(draw.row_id, error=error))
            else:
                results.append(RowResult(draw.row_id, (ids[place],), (reports[place],) if place in reports else ()))
        return results

    def verify(self, logits: torch.Tensor, draw: Draw, draft_ids: Sequence[int]) -> RowResult:
        """Sample along a draft for as long as the row's own draws agree with it.

        Every position is drawn as :meth:`sample` would draw it, so speculation changes neither the distribution nor, with a
        seed, the text. A draft token of probability p is thus kept with probability p, which is the best that rejection
        sampling can do for a draft without probabilities (Leviathan et al. 2023, arXiv:2211.17192), and exact.

        Args:
            logits: float32 [drafts + 1, vocab]; row i follows ``draft_ids[:i]``. Changed in place.
            draw: applies to every position.
            draft_ids: what the draft proposes.

        Returns:
            The accepted drafts and one token more. After an error the tokens before it stand.

        Raises:
            ValueError: ``draw`` forces a token.
        """
        if draw.forced_id is not None:
            raise ValueError("a forced token cannot be verified against a draft")
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        for position in range(len(draft_ids) + 1):
            result = self.sample(logits[position : position + 1], [draw])[0]
            tokens += result.token_ids
            logprobs += result.logprobs
            if result.error is not None:
                return RowResult(draw.row_id, tuple(tokens), tuple(logprobs), result.error)
            if position == len(draft_ids) or tokens[-1] != draft_ids[position] or self._is_complete(draw):
                break
        return RowResult(draw.row_id, tuple(tokens), tuple(logprobs))

    def _is_complete(self, draw: Draw) -> bool:
        """The row's constraint is satisfied: the engine ends the row, so nothing more is drawn."""
        constraint = self._rows[draw.row_id].constraint if draw.constrained else None
        return constraint is not None and constraint.is_finished

    def _batch_of(self, rows: tuple[Row, ...]) -> Batch:
        """The columns of this composition, kept while it lasts."""
        if self._batch is None or self._batch.rows != rows:
            self._batch = Batch.of(rows, self._vocab_size, self._device)
        return self._batch


def _settle(row: Row, draw: Draw, token: int, surprise_limit: float) -> Exception | None:
    """Show the token to the row's constraint and add it to the row's history; an error when the constraint objects."""
    if draw.constrained and row.constraint is not None:
        try:
            accepted = row.constraint.accept(token)
        except Exception as error:
            return error
        if not accepted:
            return GenerationFailed(f"the output constraint does not allow token {token} here")
    row.take(token)
    if draw.forced_id is None and not math.isnan(surprise_limit):
        row.surprise_limit = surprise_limit
    return None


def _nothing_to_draw(logits: torch.Tensor) -> GenerationFailed:
    if bool((logits.isnan() | logits.isposinf()).any()):
        return GenerationFailed("the model computed logits that are not finite numbers")
    return GenerationFailed("no token may follow: the output constraint and logit_bias ban all of them")

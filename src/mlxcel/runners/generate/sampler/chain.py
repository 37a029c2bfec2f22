"""From adjusted logits to one token a row: every way through the chain, whole groups of rows at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mlxcel.runners.generate.sampler import draw, mirostat, rowwise, truncate
from mlxcel.runners.generate.sampler.randomness import TOKEN_STREAM, XTC_STREAM, uniforms
from mlxcel.runners.generate.sampler.settings import Batch, Columns, Group, Index, Uses, Way


@dataclass(frozen=True, slots=True)
class Chosen:
    """Outcome of a batch, on the CPU.

    Attributes:
        ids: int64 [rows]; meaningless where ``found`` is False.
        found: bool [rows]; False when no token was left to draw, or the logits are not numbers.
        surprise_limits: float32 [rows]; Mirostat's limit after this draw, NaN for the rows of other ways.
    """

    ids: npt.NDArray[np.int64]
    found: npt.NDArray[np.bool_]
    surprise_limits: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Luck:
    """Random numbers of some rows.

    Attributes:
        uniform: float64 [rows, 1].
        xtc_struck: bool [rows, 1]; None when no row uses XTC.
    """

    uniform: torch.Tensor
    xtc_struck: torch.Tensor | None

    @classmethod
    def of(cls, batch: Batch, device: torch.device) -> _Luck:
        positions = batch.positions()
        uniform = torch.from_numpy(uniforms(batch.streams, positions, TOKEN_STREAM)).to(device)[:, None]
        if not batch.uses_xtc:
            return cls(uniform, None)
        chance = torch.from_numpy(uniforms(batch.streams, positions, XTC_STREAM)).to(device)[:, None]
        return cls(uniform, chance < batch.columns.xtc_probability)

    def pick(self, index: Index) -> _Luck:
        return _Luck(self.uniform[index], None if self.xtc_struck is None else self.xtc_struck[index])


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a way chose for its group. All tensors [rows]; ``limits`` only from Mirostat."""

    ids: torch.Tensor
    found: torch.Tensor
    limits: torch.Tensor | None = None


def choose(logits: torch.Tensor, batch: Batch) -> Chosen:
    """Truncate, temper and draw.

    Args:
        logits: float32 [rows, vocab], with mask, biases and penalties applied. May be changed.
    """
    _cut_by_shape(logits, batch)
    device = logits.device
    luck = _Luck.of(batch, device)
    ids = torch.zeros(len(logits), dtype=torch.int64, device=device)
    found = torch.zeros(len(logits), dtype=torch.bool, device=device)
    limits = torch.full((len(logits),), torch.nan, device=device)
    for way, group in batch.ways:
        outcome = _go(way, group.take(logits), group, batch, luck if group.index is None else luck.pick(group.index))
        group.put(ids, outcome.ids)
        group.put(found, outcome.found)
        if outcome.limits is not None:
            group.put(limits, outcome.limits)
    return Chosen(ids.cpu().numpy(), found.cpu().numpy(), limits.cpu().numpy())


def _cut_by_shape(logits: torch.Tensor, batch: Batch) -> None:
    """The processors that look at the whole distribution, for the few rows that use them."""
    for group, cut in ((batch.top_n_sigma, _top_n_sigma), (batch.p_less, _p_less), (batch.typical, _typical)):
        if group is None:
            continue
        rows = group.take(logits)
        for block in rowwise.blocks(rows):
            cut(rows[block], group.columns.pick(block), group.uses)
        if rows is not logits:
            group.put(logits, rows)


def _top_n_sigma(logits: torch.Tensor, columns: Columns, uses: Uses) -> None:
    truncate.top_n_sigma(logits, columns.top_n_sigma, columns.min_keep if uses.min_keep else None)


def _p_less(logits: torch.Tensor, columns: Columns, uses: Uses) -> None:
    truncate.p_less(logits, columns.temperature, columns.min_keep if uses.min_keep else None)


def _typical(logits: torch.Tensor, columns: Columns, uses: Uses) -> None:
    truncate.typical(logits, columns.typical_p, columns.min_keep)


def _go(way: Way, logits: torch.Tensor, group: Group, batch: Batch, luck: _Luck) -> _Outcome:
    if way is Way.GREEDY:
        best = logits.max(-1)
        return _Outcome(best.indices, best.values.isfinite())
    if way is Way.FLAT:
        return _flat(logits, group.columns, group.uses, luck)
    if way is Way.MIROSTAT_1:
        return _mirostat_1(logits, group.columns, _limits(group, batch, logits.device), luck, truncate.WIDE_TOKENS)
    if way is Way.MIROSTAT_2:
        return _mirostat_2(logits, group.columns, _limits(group, batch, logits.device), luck)
    if way is Way.WIDE:
        return _ranked(logits, group.columns, group.uses, luck, None, truncate.WIDE_TOKENS)
    if way is Way.SORTED:
        return _ranked(logits, group.columns, group.uses, luck, None, logits.shape[1])
    log_total = rowwise.log_total(logits) if way is Way.OPEN and group.uses.top_p else None
    return _ranked(logits, group.columns, group.uses, luck, log_total, truncate.NARROW_TOKENS)


def _ranked(
    logits: torch.Tensor, columns: Columns, uses: Uses, luck: _Luck, log_total: torch.Tensor | None, window: int
) -> _Outcome:
    """Top-k and top-p on the ``window`` best tokens; rows that keep more of them are done again on a larger window.

    Args:
        log_total: of the rows whose ``top_k`` is the whole vocabulary, [rows, 1]. Any other ``top_k`` fits the window.
    """
    vocab_size = logits.shape[1]
    window = min(window, vocab_size)
    ranked, ids = rowwise.best_tokens(logits, window)
    top_p = columns.top_p if uses.top_p else None
    truncate.top_k_and_p(ranked, columns.top_k, top_p, columns.min_keep, log_total)
    if uses.min_p:
        truncate.min_p(ranked, columns.log_min_p, columns.min_keep if uses.min_keep else None)
    goes_on = (columns.top_k > window) & (ranked[:, -1:] > -torch.inf)
    column, found = _finish(ranked, columns, uses, luck, ids)
    chosen = ids.gather(1, column[:, None]).squeeze(1)
    again = goes_on.squeeze(1).nonzero().squeeze(1)
    if len(again):
        larger = truncate.next_window(window, vocab_size)
        rest_total = None if log_total is None else log_total[again]
        rest = _ranked(logits[again], columns.pick(again), uses, luck.pick(again), rest_total, larger)
        chosen[again], found[again] = rest.ids, rest.found
    return _Outcome(chosen, found)


def _flat(logits: torch.Tensor, columns: Columns, uses: Uses, luck: _Luck) -> _Outcome:
    """Thresholds alone: columns stay in the order of token ids."""
    outcomes: list[tuple[torch.Tensor, torch.Tensor]] = []
    for block in rowwise.blocks(logits):
        rows, settings = logits[block], columns.pick(block)
        if uses.min_p:
            truncate.min_p(rows, settings.log_min_p, None)
        outcomes.append(_finish(rows, settings, uses, luck.pick(block), None))
    ids, found = zip(*outcomes, strict=True)
    return _Outcome(torch.cat(ids), torch.cat(found))


def _finish(
    logits: torch.Tensor, columns: Columns, uses: Uses, luck: _Luck, ids: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """XTC, temperature and the draw.

    Args:
        logits: [rows, tokens]; what was cut is -inf. Changed.
        ids: the token of each column; None when columns are token ids.

    Returns:
        The chosen column and whether there was one, both [rows].
    """
    if luck.xtc_struck is not None and uses.xtc:
        protected = _protected(columns, logits, ids)
        truncate.xtc(logits, columns.xtc_threshold, luck.xtc_struck, protected, columns.min_keep)
    temperature = columns.temperature
    if uses.dynatemp:
        temperature = draw.dynamic_temperature(logits, temperature, columns.dynatemp_range, columns.dynatemp_exponent)
    return draw.invert(torch.softmax(logits.div_(temperature), -1), luck.uniform)


def _protected(columns: Columns, logits: torch.Tensor, ids: torch.Tensor | None) -> torch.Tensor:
    """Which columns XTC must leave alone, bool like ``logits``."""
    if ids is not None:
        return (ids[:, :, None] == columns.protected[:, None, :]).any(-1)
    rows, vocab = logits.shape
    # One column more takes the filling.
    mask = torch.zeros(rows, vocab + 1, dtype=torch.bool, device=logits.device)
    return mask.scatter_(1, columns.protected, True)[:, :vocab]


def _mirostat_1(logits: torch.Tensor, columns: Columns, mu: torch.Tensor, luck: _Luck, window: int) -> _Outcome:
    """Top-k with k from the running limit; rows that keep more than ``window`` are done again on the sorted vocabulary."""
    vocab_size = logits.shape[1]
    window = min(window, vocab_size)
    ranked, ids = rowwise.best_tokens(logits, window)
    ranked = ranked / columns.temperature
    kept = mirostat.kept_tokens(ranked, mu, vocab_size)
    rank = torch.arange(window, device=logits.device)
    probabilities = torch.softmax(ranked.masked_fill(rank >= kept, -torch.inf), -1)
    place, found = draw.invert(probabilities, luck.uniform)
    share = probabilities.gather(1, place[:, None])
    limits = mirostat.next_limit(mu, columns.mirostat_tau, columns.mirostat_eta, share).squeeze(1)
    chosen = ids.gather(1, place[:, None]).squeeze(1)
    found &= ranked[:, 0].isfinite()
    again = (kept > window).squeeze(1).nonzero().squeeze(1)
    if len(again):
        whole = _mirostat_1(logits[again], columns.pick(again), mu[again], luck.pick(again), vocab_size)
        chosen[again], found[again] = whole.ids, whole.found
        if whole.limits is not None:
            limits[again] = whole.limits
    return _Outcome(chosen, found, limits)


def _mirostat_2(logits: torch.Tensor, columns: Columns, mu: torch.Tensor, luck: _Luck) -> _Outcome:
    outcomes: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    for block in rowwise.blocks(logits):
        settings = columns.pick(block)
        probabilities = torch.softmax(logits[block] / settings.temperature, -1)
        mirostat.keep_within(probabilities, mu[block])
        column, found = draw.invert(probabilities, luck.pick(block).uniform)
        share = probabilities.gather(1, column[:, None]) / rowwise.total(probabilities)
        limits = mirostat.next_limit(mu[block], settings.mirostat_tau, settings.mirostat_eta, share)
        outcomes.append((column, found, limits.squeeze(1)))
    ids, has_token, new_limits = zip(*outcomes, strict=True)
    return _Outcome(torch.cat(ids), torch.cat(has_token), torch.cat(new_limits))


def _limits(group: Group, batch: Batch, device: torch.device) -> torch.Tensor:
    """Mirostat's running limits, float32 [rows, 1]."""
    limits = [batch.rows[place].surprise_limit for place in group.places]
    return torch.tensor(limits, dtype=torch.float32, device=device)[:, None]

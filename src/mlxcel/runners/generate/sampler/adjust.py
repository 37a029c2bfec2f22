"""What changes single logits before anything is cut: grammar masks, biases and penalties. All work in place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from mlxcel.core.ports import Constraint
from mlxcel.runners.generate.sampler.settings import Batch

_WORD_BITS = 32


class Mask:
    """Bans what a grammar does not allow. Keeps one buffer, so that a step allocates no packed masks.

    Args:
        vocab_size: columns of the logits; tokens beyond a constraint's own vocabulary are banned.
        device: where the logits are.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._words: npt.NDArray[np.int32] = np.zeros((1, -(-vocab_size // _WORD_BITS)), dtype=np.int32)
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        # What each byte of a packed mask adds to its eight logits.
        self._penalties = torch.from_numpy(np.where(bits == 1, 0.0, -np.inf).astype(np.float32)).to(device)

    def apply(self, logits: torch.Tensor, constrained: Sequence[tuple[int, Constraint]]) -> dict[int, Exception]:
        """Set the logits of banned tokens to -inf.

        Args:
            logits: float32 [rows, vocab].
            constrained: (place, constraint) of the rows to mask.

        Returns:
            For each place whose constraint raised: what it raised. Such a row is left unmasked.
        """
        if len(self._words) < len(constrained):
            self._words = np.zeros((len(constrained), self._words.shape[1]), dtype=np.int32)
        places: list[int] = []
        errors: dict[int, Exception] = {}
        for place, constraint in constrained:
            words = self._words[len(places)]
            words.fill(0)
            try:
                constraint.fill_mask(words.ctypes.data, len(words))
            except Exception as error:
                errors[place] = error
                continue
            places.append(place)
        if places:
            packed = torch.from_numpy(self._words[: len(places)].view(np.uint8)).to(logits.device)
            penalties = torch.index_select(self._penalties, 0, packed.int().view(-1))
            penalties = penalties.view(len(places), -1)[:, : self._vocab_size]
            if len(places) == len(logits):
                logits += penalties
            else:
                logits[torch.tensor(places, device=logits.device)] += penalties
        return errors


def add_bias(logits: torch.Tensor, batch: Batch) -> None:
    """Add the requests' ``logit_bias``; -inf bans."""
    if batch.bias is not None:
        logits[batch.bias.places, batch.bias.ids] += batch.bias.values


def penalise_counts(logits: torch.Tensor, batch: Batch) -> None:
    """Repetition, frequency and presence penalties over each row's last tokens, prompt included (llama.cpp's definition).

    Repetition divides positive logits and multiplies the others (Keskar et al. 2019, arXiv:1909.05858, made monotone);
    frequency then subtracts per occurrence, presence once.
    """
    histories = [(place, counts) for place in batch.counted if (counts := batch.rows[place].counts) is not None]
    if not histories:
        return
    places = _repeat([place for place, _ in histories], [len(counts.ids) for _, counts in histories], logits.device)
    ids = torch.from_numpy(np.concatenate([counts.ids for _, counts in histories])).to(logits.device)
    times = torch.from_numpy(np.concatenate([counts.counts for _, counts in histories])).to(logits.device)
    columns = batch.columns
    before = logits[places, ids]
    factor = columns.repetition_penalty[places, 0]
    after = torch.where(before > 0.0, before / factor, before * factor)
    after -= times * columns.frequency_penalty[places, 0] + columns.presence_penalty[places, 0]
    logits[places, ids] = after


def penalise_repeats(logits: torch.Tensor, batch: Batch) -> None:
    """The DRY penalty; see :class:`~mlxcel.runners.generate.sampler.history.DryMatcher`."""
    found = [(place, *dry.penalties()) for place in batch.dry if (dry := batch.rows[place].dry) is not None]
    found = [(place, ids[known], amount[known]) for place, ids, amount in found if (known := _known(ids, logits)).any()]
    if not found:
        return
    places = _repeat([place for place, _, _ in found], [len(ids) for _, ids, _ in found], logits.device)
    ids = torch.from_numpy(np.concatenate([ids for _, ids, _ in found])).to(logits.device)
    logits[places, ids] -= torch.from_numpy(np.concatenate([amount for _, _, amount in found])).to(logits.device)


def _known(ids: npt.NDArray[np.int64], logits: torch.Tensor) -> npt.NDArray[np.bool_]:
    """Which ids have logits: a prompt may hold others, in the place of media."""
    return (ids >= 0) & (ids < logits.shape[1])


def _repeat(places: list[int], times: list[int], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.repeat(np.array(places, dtype=np.int64), times)).to(device)

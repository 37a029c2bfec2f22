"""Settings of a batch as column tensors, and which rows take which way through the chain.

Everything here depends on the rows alone, so it is built when the composition of the batch changes and reused until then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import Enum, auto

import numpy as np
import torch

from mlxcel.core.sampling import SamplingParams
from mlxcel.runners.generate.sampler.randomness import U64Array
from mlxcel.runners.generate.sampler.row import Row
from mlxcel.runners.generate.sampler.truncate import NARROW_TOKENS, WIDE_TOKENS

Index = torch.Tensor | slice


class Way(Enum):
    """How a row's token is chosen. A function of the row's own settings, so that neighbours cannot change its draws."""

    GREEDY = auto()
    NARROW = auto()  # top-k bounds the survivors by the narrow window of best tokens,
    WIDE = auto()  # by the wide one,
    SORTED = auto()  # or by more
    OPEN = auto()  # top-p without top-k: the distribution says how many of the best tokens survive
    FLAT = auto()  # only thresholds: no order is needed
    MIROSTAT_1 = auto()
    MIROSTAT_2 = auto()


@dataclass(frozen=True, slots=True)
class Columns:
    """One [rows, 1] tensor a setting. Processors that are off have a value that changes nothing."""

    temperature: torch.Tensor
    top_p: torch.Tensor
    log_min_p: torch.Tensor
    typical_p: torch.Tensor
    top_n_sigma: torch.Tensor
    xtc_probability: torch.Tensor
    xtc_threshold: torch.Tensor
    dynatemp_range: torch.Tensor
    dynatemp_exponent: torch.Tensor
    repetition_penalty: torch.Tensor
    frequency_penalty: torch.Tensor
    presence_penalty: torch.Tensor
    mirostat_tau: torch.Tensor
    mirostat_eta: torch.Tensor
    top_k: torch.Tensor  # int64, in 1..vocab; at least min_keep
    min_keep: torch.Tensor  # int64, at least 1
    protected: torch.Tensor  # int64 [rows, most]; ids XTC never removes, filled up with vocab

    def pick(self, index: Index) -> Columns:
        """The settings of some rows."""
        return Columns(*(getattr(self, field.name)[index] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Uses:
    """Which processors any of some rows uses; the others are skipped."""

    top_p: bool
    min_p: bool
    xtc: bool
    dynatemp: bool
    min_keep: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that go through a processor together.

    Attributes:
        places: their places in the batch, ascending.
        index: the same as an int64 tensor; None when the group is the whole batch.
        columns: their settings.
        uses: what any of them uses.
    """

    places: tuple[int, ...]
    index: torch.Tensor | None
    columns: Columns
    uses: Uses

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """The group's rows of a batch tensor; the tensor itself when the group is the whole batch."""
        return x if self.index is None else x[self.index]

    def put(self, x: torch.Tensor, rows: torch.Tensor) -> None:
        """Write the group's rows back."""
        if self.index is not None:
            x[self.index] = rows
        else:
            x.copy_(rows)


@dataclass(frozen=True, slots=True)
class BiasTable:
    """All logit biases of a batch as coordinates: logits[places, ids] += values."""

    places: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """A composition of rows."""

    rows: tuple[Row, ...]
    columns: Columns
    uses_xtc: bool
    streams: U64Array
    bias: BiasTable | None
    counted: tuple[int, ...]
    dry: tuple[int, ...]
    top_n_sigma: Group | None
    p_less: Group | None
    typical: Group | None
    ways: tuple[tuple[Way, Group], ...]

    @classmethod
    def of(cls, rows: Sequence[Row], vocab_size: int, device: torch.device) -> Batch:
        columns = _columns(rows, vocab_size, device)
        ways = [_way(row.params, vocab_size) for row in rows]

        def group(chosen: Callable[[Row, Way], bool]) -> Group | None:
            places = tuple(place for place, row in enumerate(rows) if chosen(row, ways[place]))
            return _group(places, rows, columns, device) if places else None

        def truncated(way: Way) -> bool:
            return way not in (Way.GREEDY, Way.MIROSTAT_1, Way.MIROSTAT_2)

        def by_way(wanted: Way) -> Group | None:
            return group(lambda _, way: way is wanted)

        grouped = ((way, by_way(way)) for way in Way)
        return cls(
            rows=tuple(rows),
            columns=columns,
            uses_xtc=any(row.params.xtc_probability > 0.0 for row in rows),
            streams=np.array([row.stream for row in rows], dtype=np.uint64),
            bias=_bias(rows, device),
            counted=tuple(place for place, row in enumerate(rows) if row.counts is not None),
            dry=tuple(place for place, row in enumerate(rows) if row.dry is not None),
            top_n_sigma=group(lambda row, way: truncated(way) and row.params.top_n_sigma >= 0.0),
            p_less=group(lambda row, way: truncated(way) and row.params.p_less),
            typical=group(lambda row, way: truncated(way) and row.params.typical_p < 1.0),
            ways=tuple((way, members) for way, members in grouped if members is not None),
        )

    def positions(self) -> U64Array:
        return np.array([row.position for row in self.rows], dtype=np.uint64)


def _way(params: SamplingParams, vocab_size: int) -> Way:
    if params.is_greedy:
        return Way.GREEDY
    if params.mirostat == 1:
        return Way.MIROSTAT_1
    if params.mirostat == 2:
        return Way.MIROSTAT_2
    kept = _kept_tokens(params, vocab_size)
    if kept <= NARROW_TOKENS:
        return Way.NARROW
    if kept < vocab_size:
        return Way.WIDE if kept <= WIDE_TOKENS else Way.SORTED
    return Way.FLAT if params.top_p >= 1.0 and params.min_keep <= 1 else Way.OPEN


def _kept_tokens(params: SamplingParams, vocab_size: int) -> int:
    """What top-k keeps: it, too, leaves at least ``min_keep``."""
    if params.top_k <= 0:
        return vocab_size
    return min(max(params.top_k, params.min_keep), vocab_size)


def _columns(rows: Sequence[Row], vocab_size: int, device: torch.device) -> Columns:
    reals = np.array([_reals(row.params) for row in rows], dtype=np.float32)
    counts = [(_kept_tokens(row.params, vocab_size), max(row.params.min_keep, 1)) for row in rows]
    protected = [
        sorted(token for token in row.params.xtc_protected_ids if 0 <= token < vocab_size)
        if row.params.xtc_probability > 0.0
        else []
        for row in rows
    ]
    most = max(map(len, protected))
    filled = [ids + [vocab_size] * (most - len(ids)) for ids in protected]
    real = [column[:, None] for column in torch.from_numpy(reals).to(device).unbind(1)]
    whole = [column[:, None] for column in torch.tensor(counts, dtype=torch.int64, device=device).unbind(1)]
    everything = [*real, *whole, torch.tensor(filled, dtype=torch.int64, device=device)]
    return Columns(*everything)


def _reals(params: SamplingParams) -> tuple[float, ...]:
    """Floating-point settings in the order of :class:`Columns`."""
    return (
        max(params.temperature, 1e-6),
        params.top_p if params.top_p < 1.0 else math.inf,
        math.log(params.min_p) if params.min_p > 0.0 else -math.inf,
        params.typical_p,
        params.top_n_sigma,
        params.xtc_probability,
        params.xtc_threshold,
        params.dynatemp_range,
        params.dynatemp_exponent,
        params.repetition_penalty,
        params.frequency_penalty,
        params.presence_penalty,
        params.mirostat_tau,
        params.mirostat_eta,
    )


def _bias(rows: Sequence[Row], device: torch.device) -> BiasTable | None:
    entries = [(place, token, value) for place, row in enumerate(rows) for token, value in row.bias.items()]
    if not entries:
        return None
    places, ids, values = zip(*entries, strict=True)
    return BiasTable(
        torch.tensor(places, dtype=torch.int64, device=device),
        torch.tensor(ids, dtype=torch.int64, device=device),
        torch.tensor(values, dtype=torch.float32, device=device),
    )


def _group(places: tuple[int, ...], rows: Sequence[Row], columns: Columns, device: torch.device) -> Group:
    params = [rows[place].params for place in places]
    index = None if len(places) == len(rows) else torch.tensor(places, dtype=torch.int64, device=device)
    return Group(
        places=places,
        index=index,
        columns=columns if index is None else columns.pick(index),
        uses=Uses(
            top_p=any(setting.top_p < 1.0 for setting in params),
            min_p=any(setting.min_p > 0.0 for setting in params),
            xtc=any(setting.xtc_probability > 0.0 for setting in params),
            dynatemp=any(setting.dynatemp_range > 0.0 for setting in params),
            min_keep=any(setting.min_keep > 1 for setting in params),
        ),
    )

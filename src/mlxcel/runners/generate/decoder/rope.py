"""Rotary position embeddings: inverse frequencies of every scaling method, and the tables a decoder reads.

All methods rotate the two halves of a head against each other ("neox" order): ``x * cos + rotate_half(x) * sin``.
Arithmetic is float32 throughout, in the order transformers uses, so that both give the same angles to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

FloatArray = npt.NDArray[np.float32]

SCALING_METHODS = frozenset({"default", "linear", "dynamic", "yarn", "llama3"})


@dataclass(frozen=True, slots=True, eq=False)
class NtkGrowth:
    """Dynamic NTK: the base grows with the sequence once it is past the trained window.

    Here the frequencies belong to a *position*: position ``p`` at or past the window is rotated as if the sequence had
    ``p + 1`` tokens. That is what step-by-step decoding does, and unlike "the longest position in this batch" it does not
    depend on how a prompt was split or on which strangers share the batch.
    """

    base: float
    factor: float
    window_tokens: int
    rotary_dim: int

    def frequencies(self, length_tokens: torch.Tensor) -> torch.Tensor:
        """Inverse frequencies [lengths, rotary_dim / 2] for sequences of the given lengths (int64 [lengths])."""
        stretch = self.factor * length_tokens.double() / self.window_tokens - (self.factor - 1.0)
        base = self.base * stretch ** (self.rotary_dim / (self.rotary_dim - 2))
        return 1.0 / (base.float()[:, None] ** _exponents(self.rotary_dim)[None, :])


@dataclass(frozen=True, slots=True, eq=False)
class RopeSpec:
    """How positions are rotated.

    Attributes:
        inverse_frequencies: float32 [rotary_dim / 2]; angle = position * inverse frequency.
        table_scale: factor on both cosine and sine (YaRN's attention factor; 1 elsewhere).
        growth: set for dynamic NTK scaling only.
    """

    inverse_frequencies: FloatArray
    table_scale: float = 1.0
    growth: NtkGrowth | None = None

    @property
    def rotary_dim(self) -> int:
        """Leading dimensions of a head that are rotated; the rest passes through."""
        return 2 * len(self.inverse_frequencies)

    def tables(self, position_count: int) -> tuple[FloatArray, FloatArray]:
        """Cosine and sine, float32 [position_count, rotary_dim / 2] each, already multiplied by ``table_scale``."""
        positions = torch.arange(position_count)
        angles = positions.float()[:, None] * torch.from_numpy(self.inverse_frequencies)[None, :]
        if self.growth is not None and position_count > self.growth.window_tokens:
            late = positions[self.growth.window_tokens :]
            angles[self.growth.window_tokens :] = late.float()[:, None] * self.growth.frequencies(late + 1)
        return (angles.cos() * self.table_scale).numpy(), (angles.sin() * self.table_scale).numpy()


def rope_parameters(config: Mapping[str, Any], default_theta: float = 10_000.0) -> dict[str, Any]:
    """The rope settings of a checkpoint's config in one spelling.

    Accepts ``rope_parameters`` (transformers 5) and the older ``rope_theta`` plus ``rope_scaling``.
    """
    merged: dict[str, Any] = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    merged.setdefault("rope_type", merged.pop("type", None) or "default")
    merged.setdefault("rope_theta", config.get("rope_theta") or default_theta)
    if config.get("partial_rotary_factor") is not None:
        merged.setdefault("partial_rotary_factor", config["partial_rotary_factor"])
    if config.get("original_max_position_embeddings"):
        merged["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    return merged


def scaled_window_tokens(parameters: Mapping[str, Any], trained_tokens: int) -> int:
    """The window that a scaling method makes of ``max_position_embeddings``.

    Linear and dynamic scaling stretch it by their factor; YaRN stretches the trained window it names; the others state the
    stretched window already.
    """
    factor = float(parameters.get("factor") or 1.0)
    match str(parameters["rope_type"]):
        case "linear" | "dynamic":
            return int(trained_tokens * factor)
        case "yarn":
            return max(
                trained_tokens, int(float(parameters.get("original_max_position_embeddings") or trained_tokens) * factor)
            )
        case _:
            return trained_tokens


def build_rope(parameters: Mapping[str, Any], head_dim: int, window_tokens: int) -> RopeSpec:
    """Compute the frequencies.

    Args:
        parameters: as :func:`rope_parameters` returns them.
        head_dim: size of one attention head.
        window_tokens: ``max_position_embeddings``; the trained window unless the parameters name another.

    Raises:
        ValueError: an unknown method.
    """
    method = str(parameters["rope_type"])
    base = float(parameters["rope_theta"])
    rotary_dim = int(head_dim * float(parameters.get("partial_rotary_factor") or 1.0))
    plain = 1.0 / (base ** _exponents(rotary_dim))
    match method:
        case "default":
            return RopeSpec(plain.numpy())
        case "linear":
            return RopeSpec((plain / float(parameters["factor"])).numpy())
        case "dynamic":
            return RopeSpec(plain.numpy(), growth=NtkGrowth(base, float(parameters["factor"]), window_tokens, rotary_dim))
        case "llama3":
            return RopeSpec(_llama3(plain, parameters, window_tokens).numpy())
        case "yarn":
            return _yarn(base, rotary_dim, parameters, window_tokens)
        case _:
            raise ValueError(f"unknown rope scaling method {method!r}")


def _exponents(rotary_dim: int) -> torch.Tensor:
    return torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim


def _llama3(plain: torch.Tensor, parameters: Mapping[str, Any], window_tokens: int) -> torch.Tensor:
    """Llama 3.1: long wavelengths are divided by ``factor``, short ones kept, those between blended linearly."""
    factor = float(parameters["factor"])
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    trained = float(parameters.get("original_max_position_embeddings") or window_tokens)
    wavelength = 2 * math.pi / plain
    scaled = torch.where(wavelength > trained / low, plain / factor, plain)
    blend = (trained / wavelength - low) / (high - low)
    between = ~(wavelength < trained / high) & ~(wavelength > trained / low)
    return torch.where(between, (1 - blend) * scaled / factor + blend * scaled, scaled)


def _yarn(base: float, rotary_dim: int, parameters: Mapping[str, Any], window_tokens: int) -> RopeSpec:
    """YaRN (arXiv 2309.00071): interpolate slow dimensions, keep fast ones, ramp between; sharpen by the attention factor.

    ``extrapolation_factor`` (llama.cpp's ``--yarn-ext-factor``) weighs the ramp; 0 interpolates every dimension.
    """
    trained = float(parameters.get("original_max_position_embeddings") or window_tokens)
    factor = float(parameters.get("factor") or window_tokens / trained)

    def turning_dim(rotations: float) -> float:
        return (rotary_dim * math.log(trained / (rotations * 2 * math.pi))) / (2 * math.log(base))

    low, high = turning_dim(float(parameters.get("beta_fast") or 32)), turning_dim(float(parameters.get("beta_slow") or 1))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    if low == high:
        high += 0.001
    ramp = torch.clamp((torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    keep = (1 - ramp) * float(parameters.get("extrapolation_factor", 1.0))
    wavelengths = base ** _exponents(rotary_dim)
    frequencies = 1.0 / (factor * wavelengths) * (1 - keep) + 1.0 / wavelengths * keep
    return RopeSpec(frequencies.numpy(), _yarn_attention_factor(factor, parameters))


def _yarn_attention_factor(factor: float, parameters: Mapping[str, Any]) -> float:
    def sharpen(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])
    weight, weight_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if weight and weight_all:
        return sharpen(float(weight)) / sharpen(float(weight_all))
    return sharpen(1.0)

"""RoPE settings of a GGUF file as Hugging Face ``rope_parameters``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mlxcel.runners.weights.gguf.blocks import dense_rows
from mlxcel.runners.weights.gguf.metadata import Metadata

# Llama 3.1 and its descendants; only the factor differs between them.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def rope_parameters(metadata: Metadata, head_dim: int, default_theta: float = 10000.0) -> dict[str, Any]:
    """The settings of full-attention layers.

    Formulas: YaRN, https://arxiv.org/abs/2309.00071; LongRoPE, https://arxiv.org/abs/2402.13753.
    """
    theta = metadata.get("rope.freq_base", default_theta)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    rotated = metadata.get("rope.dimension_count", head_dim)
    if rotated != head_dim:
        rope["partial_rotary_factor"] = rotated / head_dim
    kind = metadata.get("rope.scaling.type", "none")
    if "rope_factors_long.weight" in metadata.tensors:
        return rope | _longrope(metadata)
    if kind == "yarn":
        return rope | _yarn(metadata)
    if kind == "linear":
        return rope | {"rope_type": "linear", "factor": metadata.need("rope.scaling.factor")}
    factors = _factors(metadata, "rope_freqs.weight")
    return rope | _per_frequency(factors, theta) if factors else rope


def _factors(metadata: Metadata, name: str) -> list[float]:
    """Divisors of each rotation frequency, from a tensor of the file; empty when it has none."""
    tensor = metadata.tensors.get(name)
    if tensor is None:
        return []
    values: list[float] = dense_rows(metadata.rows(tensor), tensor.kind)[0].tolist()
    return values


def _yarn(metadata: Metadata) -> dict[str, Any]:
    rope = {
        "rope_type": "yarn",
        "factor": metadata.need("rope.scaling.factor"),
        "original_max_position_embeddings": metadata.need("rope.scaling.original_context_length"),
    }
    optional = {
        "beta_fast": "rope.scaling.yarn_beta_fast",
        "beta_slow": "rope.scaling.yarn_beta_slow",
        "attention_factor": "rope.scaling.yarn_attn_factor",
    }
    return rope | metadata.present(optional)


def _longrope(metadata: Metadata) -> dict[str, Any]:
    rope = {
        "rope_type": "longrope",
        "long_factor": _factors(metadata, "rope_factors_long.weight"),
        "short_factor": _factors(metadata, "rope_factors_short.weight"),
    }
    return rope | metadata.present(
        {
            "attention_factor": "rope.scaling.attn_factor",
            "original_max_position_embeddings": "rope.scaling.original_context_length",
        }
    )


def _per_frequency(factors: Sequence[float], theta: float) -> dict[str, Any]:
    """Name the rule that made the divisors: Llama 3's, else the list itself, as LongRoPE with equal lists."""
    llama3 = {"rope_type": "llama3", "factor": max(factors)} | _LLAMA3
    expected = _llama3_factors(llama3, theta, len(factors))
    if all(math.isclose(one, other, rel_tol=1e-4) for one, other in zip(factors, expected, strict=True)):
        return llama3
    return {
        "rope_type": "longrope",
        "long_factor": list(factors),
        "short_factor": list(factors),
        "attention_factor": 1.0,
        "original_max_position_embeddings": 1,
    }


def _llama3_factors(rope: Mapping[str, Any], theta: float, count: int) -> list[float]:
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for index in range(count):
        wavelength = 2.0 * math.pi * theta ** (index / count)
        rotations = rope["original_max_position_embeddings"] / wavelength
        smooth = min(max((rotations - low) / (high - low), 0.0), 1.0)
        factors.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return factors

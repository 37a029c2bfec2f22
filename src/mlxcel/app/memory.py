"""Whether a model fits into the memory, and how much of the rest its KV cache may take."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from mlxcel.config.memory import MemoryConfig
from mlxcel.config.values import human_bytes
from mlxcel.core.errors import StartupError

if TYPE_CHECKING:
    from mlxcel.runners.generate.estimate import MemoryEstimate
    from mlxcel.runners.generate.options import RunnerOptions
    from mlxcel.runners.weights import Checkpoint

_KV_SHARE = 0.5  # of what weights and activations leave


def with_kv_budget(config: MemoryConfig, checkpoint: Checkpoint, options: RunnerOptions) -> RunnerOptions:
    """Options with a KV budget. One that the operator did not give is half of what the model leaves of the memory; where it
    leaves nothing, the choice stays with the runner (and :func:`check_memory` fails)."""
    if options.kv_budget_bytes or options.kv_block_count:
        return options
    bare = estimate(config, checkpoint, dataclasses.replace(options, kv_block_count=1))
    usable_bytes = int(bare.budget_bytes / config.headroom_factor)
    rest_bytes = usable_bytes - bare.weights_bytes - bare.activation_bytes
    return dataclasses.replace(options, kv_budget_bytes=max(0, int(rest_bytes * _KV_SHARE)))


def estimate(config: MemoryConfig, checkpoint: Checkpoint, options: RunnerOptions) -> MemoryEstimate:
    """What the model will take, and the budget it is held against."""
    from mlxcel.runners.generate.estimate import estimate_memory

    return estimate_memory(
        checkpoint, options, headroom_factor=config.headroom_factor, limit_bytes=config.limit_bytes
    )


def check_memory(config: MemoryConfig, checkpoint: Checkpoint, options: RunnerOptions) -> None:
    """
    Raises:
        StartupError: the model is reckoned not to fit, and the operator did not say to try it all the same.
    """
    if config.unchecked:
        return
    needed = estimate(config, checkpoint, options)
    if needed.total_bytes <= needed.budget_bytes:
        return
    parts = {
        "weights": needed.weights_bytes,
        "KV": needed.kv_bytes_total,
        "activations": needed.activation_bytes,
        "headroom": needed.headroom_bytes,
    }
    listed = ", ".join(f"{name} {human_bytes(size)}" for name, size in parts.items())
    total, budget = human_bytes(needed.total_bytes), human_bytes(needed.budget_bytes)
    raise StartupError(
        f"the model needs about {total} of memory ({listed}), and there are {budget}; lower --ctx-size, --parallel or "
        "--kv-cache-budget, or start with --no-memory-check"
    )

"""How much memory a model takes, and how much there is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from mlxcel.core.errors import StartupError
from mlxcel.runners.generate.options import BLOCK_TOKENS, RunnerOptions

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CGROUP_USE = Path("/sys/fs/cgroup/memory.current")
_MEMINFO = Path("/proc/meminfo")
_KV_SHARE = 0.5  # of the free memory, when no budget is given


BlockCount = Callable[[int], int]  # bytes per token -> blocks of a pool


def available_bytes() -> int:
    """Memory that can be allocated now, a container's limit included."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    if _CGROUP_LIMIT.exists():
        limit = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
        if limit.isdigit():
            free = min(free, max(0, int(limit) - int(_CGROUP_USE.read_text(encoding="ascii"))))
    return free


def free_bytes(device: torch.device) -> int:
    """Memory that can be allocated on a device now."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else available_bytes()


def row_blocks(context_tokens: int) -> int:
    """KV blocks that one row of ``context_tokens`` fills."""
    return -(-context_tokens // BLOCK_TOKENS)


def kv_budget_bytes(options: RunnerOptions) -> int:
    """What cached state may take: the operator's figure, else a share of the free memory."""
    return options.kv_budget_bytes or int(available_bytes() * _KV_SHARE)


def pool_block_count(options: RunnerOptions, context_tokens: int, bytes_per_token: int) -> int:
    """Blocks of the KV pool: what was asked for, else every row's whole window as far as the budget goes.

    Raises:
        StartupError: the budget does not hold a single block.
    """
    if options.kv_block_count:
        return options.kv_block_count
    budget_bytes = kv_budget_bytes(options)
    affordable = budget_bytes // (bytes_per_token * BLOCK_TOKENS)
    if affordable < 1:
        raise StartupError(f"a KV cache budget of {budget_bytes} bytes does not hold {BLOCK_TOKENS} tokens; raise it")
    return min(affordable, options.max_rows * row_blocks(context_tokens))

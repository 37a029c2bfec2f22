"""Random LoRA adapters in PEFT's layout, and checkpoints with adapters merged into their weights."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

RANK = 4
ALPHA = 16.0


def write_tiny_adapter(
    folder: Path, checkpoint: Path, modules: Sequence[str], *, seed: int = 0, rank: int = RANK, **fields: Any
) -> Path:
    """Write an adapter that visibly changes ``modules`` (full names, no ``.weight``) of a checkpoint; returns the folder.

    ``fields`` are put into ``adapter_config.json``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = load_file(checkpoint / "model.safetensors")
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for module in modules:
        out, into = weights[f"{module}.weight"].shape
        spread = float(weights[f"{module}.weight"].float().std())
        tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn(rank, into, generator=generator) / math.sqrt(rank)
        tensors[f"base_model.model.{module}.lora_B.weight"] = torch.randn(out, rank, generator=generator) * spread / 2
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA, "use_dora": False, "bias": "none"} | fields
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def merge_adapters(folder: Path, checkpoint: Path, adapters: Sequence[tuple[Path, float]]) -> Path:
    """Copy a checkpoint with ``scale * alpha / rank * B @ A`` of each adapter added to its weights; returns ``folder``."""
    shutil.copytree(checkpoint, folder)
    weights = load_file(checkpoint / "model.safetensors")
    for path, scale in adapters:
        config = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))
        tensors = load_file(path / "adapter_model.safetensors")
        rank = int(config["r"])
        factor = scale * config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)
        for name in tensors:
            if name.endswith(".lora_A.weight"):
                module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                update = tensors[name.replace("lora_A", "lora_B")].double() @ tensors[name].double()
                base = weights[f"{module}.weight"]
                weights[f"{module}.weight"] = (base.double() + factor * update).to(base.dtype)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder

"""Options of LoRA adapters."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlxcel.config.option import many, switch
from mlxcel.core.errors import StartupError


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """LoRA adapters"""

    lora: tuple[str, ...] = many(
        "--lora", "--adapter", metavar="PATHS", help="PEFT adapters (folders or safetensors files) with scale 1; repeatable"
    )
    lora_scaled: tuple[str, ...] = many(
        "--lora-scaled", metavar="PATH:SCALE,...", help="PEFT adapters with their scales; ids go on after those of --lora"
    )
    without_apply: bool = switch(
        False, "--lora-init-without-apply", help="load adapters with scale 0, to be raised by POST /lora-adapters"
    )


def named_adapters(config: AdapterConfig) -> tuple[tuple[str, float], ...]:
    """Path and scale at the start of every adapter, by id.

    Raises:
        StartupError: a scale is missing or not a finite number.
    """
    found = [(path, 1.0) for path in config.lora] + [_scaled(text) for text in config.lora_scaled]
    return tuple((path, 0.0 if config.without_apply else scale) for path, scale in found)


def _scaled(text: str) -> tuple[str, float]:
    path, _, number = text.rpartition(":")
    try:
        scale = float(number)
    except ValueError:
        scale = math.nan
    if not path or not math.isfinite(scale):
        raise StartupError(f"--lora-scaled: {text!r} must be PATH:SCALE with a finite scale")
    return path, scale

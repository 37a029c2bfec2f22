"""Texts of options that need more than a number: JSON, budgets, bias lists."""

from __future__ import annotations

import json
import math
from typing import Any

from mlxcel.config.option import parse_bytes

_MAX_BIAS = 1e6  # a larger one would make the logits infinite


def parse_json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("expected a JSON object") from None
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")
    return value


def parse_budget_bytes(text: str) -> str:
    """``auto``, ``none`` or a size; kept as text because the first two depend on the machine."""
    if text not in ("auto", "none"):
        parse_bytes(text)
    return text


def parse_logit_bias(text: str) -> tuple[tuple[int, float], ...]:
    """``ID+BIAS`` or ``ID-BIAS``, comma separated, as llama-server spells it; ``ID-inf`` bans a token."""
    pairs: list[tuple[int, float]] = []
    for part in filter(None, (item.strip() for item in text.split(","))):
        split = next((i for i, char in enumerate(part) if char in "+-" and i > 0), 0)
        try:
            token_id, bias = int(part[:split]), float(part[split:])
        except ValueError:
            raise ValueError("expected ID+BIAS or ID-BIAS") from None
        if token_id < 0 or math.isnan(bias) or bias > _MAX_BIAS:
            raise ValueError("expected ID+BIAS or ID-BIAS")
        pairs.append((token_id, bias))
    return tuple(pairs)


def human_bytes(size_bytes: float) -> str:
    """``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"

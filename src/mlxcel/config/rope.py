"""Options of position scaling, as llama-server spells them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlxcel.config.option import option, parse_float, parse_int


def _unless_zero(parse: Callable[[str], float]) -> Callable[[str], float | None]:
    """llama-server writes 0 for "what the model says"."""
    return lambda text: parse(text) or None


def _unless_negative(text: str) -> float | None:
    """llama-server writes a negative number for "choose for me"."""
    value = parse_float()(text)
    return value if value >= 0 else None


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Position scaling"""

    scaling: str | None = option(
        None,
        "--rope-scaling",
        env="LLAMA_ARG_ROPE_SCALING_TYPE",
        choices=("none", "linear", "yarn"),
        help="scaling method (default: the model's)",
    )
    scale: float | None = option(
        None,
        "--rope-scale",
        env="LLAMA_ARG_ROPE_SCALE",
        parse=_unless_zero(parse_float(0)),
        metavar="F",
        help="the window grows by this factor (0: the model's)",
    )
    freq_base: float | None = option(
        None,
        "--rope-freq-base",
        env="LLAMA_ARG_ROPE_FREQ_BASE",
        parse=_unless_zero(parse_float(0)),
        metavar="F",
        help="rope theta (0: the model's)",
    )
    freq_scale: float | None = option(
        None,
        "--rope-freq-scale",
        env="LLAMA_ARG_ROPE_FREQ_SCALE",
        parse=_unless_zero(parse_float(0)),
        metavar="F",
        help="inverse of --rope-scale, which wins (0: the model's)",
    )
    yarn_orig_ctx: int | None = option(
        None,
        "--yarn-orig-ctx",
        env="LLAMA_ARG_YARN_ORIG_CTX",
        parse=lambda text: parse_int(0)(text) or None,
        metavar="N",
        help="window the model was trained with, in tokens (0: the model's)",
    )
    yarn_ext_factor: float | None = option(
        None,
        "--yarn-ext-factor",
        env="LLAMA_ARG_YARN_EXT_FACTOR",
        parse=_unless_negative,
        metavar="F",
        help="weight of extrapolated dimensions, native decoders only (negative: automatic)",
    )
    yarn_attn_factor: float | None = option(
        None,
        "--yarn-attn-factor",
        env="LLAMA_ARG_YARN_ATTN_FACTOR",
        parse=_unless_negative,
        metavar="F",
        help="factor on the attention's magnitude (negative: automatic)",
    )
    yarn_beta_slow: float | None = option(
        None,
        "--yarn-beta-slow",
        env="LLAMA_ARG_YARN_BETA_SLOW",
        parse=_unless_negative,
        metavar="F",
        help="rotations at which interpolation is full (negative: automatic)",
    )
    yarn_beta_fast: float | None = option(
        None,
        "--yarn-beta-fast",
        env="LLAMA_ARG_YARN_BETA_FAST",
        parse=_unless_negative,
        metavar="F",
        help="rotations at which extrapolation is full (negative: automatic)",
    )

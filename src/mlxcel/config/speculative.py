"""Options of speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass

from mlxcel.config.option import option, parse_int

MAX_DRAFT_TOKENS = 64


def parse_draft_kind(text: str) -> str:
    """``auto``, or empty. The kinds of trained drafters are known, to say that they are not served."""
    if text in ("mtp", "dflash"):
        raise ValueError(f"{text} drafters are not served; a smaller model with the same vocabulary needs no such option")
    if text not in ("", "auto"):
        raise ValueError("expected auto")
    return "auto"


def parse_block_size(text: str) -> int:
    """0, or room for the newest token and one proposal at least."""
    size = parse_int(0, MAX_DRAFT_TOKENS + 1)(text)
    if size == 1:
        raise ValueError("must be 0 or at least 2; start with --spec-type none to propose nothing")
    return size


def parse_spec_type(text: str) -> str:
    """Which drafter to use."""
    if text in ("draft-mtp", "draft-dflash"):
        raise ValueError(f"{text} is not served; choose auto, none, prompt-lookup or draft-model")
    if text not in ("auto", "none", "prompt-lookup", "draft-model"):
        raise ValueError("must be one of auto, none, prompt-lookup, draft-model")
    return text


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Speculative decoding"""

    draft_model: str = option(
        "",
        "--draft-model",
        "--model-draft",
        "-md",
        "--spec-draft-model",
        env=("LLAMA_ARG_SPEC_DRAFT_MODEL", "LLAMA_ARG_MODEL_DRAFT"),
        metavar="M",
        help="smaller model with the same vocabulary that proposes tokens: a path or owner/name",
    )
    draft_max: int = option(
        0,
        "--draft-max",
        "--draft",
        "--spec-draft-n-max",
        env=("LLAMA_ARG_SPEC_DRAFT_N_MAX", "LLAMA_ARG_DRAFT_MAX"),
        parse=parse_int(0, MAX_DRAFT_TOKENS),
        metavar="N",
        help="most tokens proposed at once (0: 4 of a draft model, 7 of prompt lookup)",
    )
    draft_block_size: int = option(
        0,
        "--draft-block-size",
        env=("LLAMA_ARG_DRAFT_BLOCK_SIZE", "MLXCEL_DRAFT_BLOCK_SIZE"),
        parse=parse_block_size,
        metavar="N",
        help="most tokens verified at once, one more than are proposed (0: as --draft-max says)",
    )
    draft_kind: str = option(
        "auto",
        "--draft-kind",
        env=("LLAMA_ARG_DRAFT_KIND", "MLXCEL_DRAFT_KIND"),
        parse=parse_draft_kind,
        metavar="KIND",
        help="auto: a draft model is an ordinary language model",
    )
    spec_type: str = option(
        "auto",
        "--spec-type",
        parse=parse_spec_type,
        metavar="TYPE",
        help="auto: the draft model where one is named, else as --prompt-lookup says; or prompt-lookup, draft-model, none",
    )
    prompt_lookup: str = option(
        "auto",
        "--prompt-lookup",
        env="MLXCEL_PROMPT_LOOKUP",
        choices=("auto", "on", "off"),
        help="propose what followed the same words earlier in the context; auto: where verifying is exact to the bit",
    )

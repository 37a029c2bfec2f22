"""Server-wide sampling defaults; a request's own fields win over each."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlxcel.config.option import option, parse_float, parse_int, switch
from mlxcel.config.values import parse_logit_bias


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """Sampling defaults"""

    n_predict: int = option(
        -1,
        "-n",
        "--n-predict",
        "--predict",
        env="LLAMA_ARG_N_PREDICT",
        parse=parse_int(-1, 2**31 - 1),
        metavar="N",
        help="new tokens when a request names no limit (-1: until the window is full)",
    )
    temperature: float = option(
        0.8, "--temp", "--temperature", env="LLAMA_ARG_TEMP", parse=parse_float(0, 100), metavar="T", help="0 is greedy"
    )
    top_k: int = option(40, "--top-k", env="LLAMA_ARG_TOP_K", parse=parse_int(-1), metavar="K", help="0: off")
    top_p: float = option(0.95, "--top-p", env="LLAMA_ARG_TOP_P", parse=parse_float(0, 1), metavar="P", help="1: off")
    min_p: float = option(0.05, "--min-p", env="LLAMA_ARG_MIN_P", parse=parse_float(0, 1), metavar="P", help="0: off")
    seed: int = option(
        -1, "-s", "--seed", env="LLAMA_ARG_SEED", parse=parse_int(-(2**63), 2**64 - 1), metavar="N", help="-1: random"
    )
    repeat_penalty: float = option(
        1.0, "--repeat-penalty", env="LLAMA_ARG_REPEAT_PENALTY", parse=parse_float(1e-6, 100), metavar="F", help="1: off"
    )
    repeat_last_n: int = option(
        64,
        "--repeat-last-n",
        env="LLAMA_ARG_REPEAT_LAST_N",
        parse=parse_int(-1),
        metavar="N",
        help="tokens looked back (-1: all)",
    )
    presence_penalty: float = option(
        0.0, "--presence-penalty", env="LLAMA_ARG_PRESENCE_PENALTY", parse=parse_float(-100, 100), metavar="F", help="0: off"
    )
    frequency_penalty: float = option(
        0.0,
        "--frequency-penalty",
        env="LLAMA_ARG_FREQUENCY_PENALTY",
        parse=parse_float(-100, 100),
        metavar="F",
        help="0: off",
    )
    typical: float = option(1.0, "--typical", env="LLAMA_ARG_TYPICAL", parse=parse_float(0, 1), metavar="P", help="1: off")
    top_n_sigma: float = option(
        -1.0,
        "--top-nsigma",
        "--top-n-sigma",
        env="LLAMA_ARG_TOP_NSIGMA",
        parse=parse_float(),
        metavar="F",
        help="below 0: off",
    )
    xtc_probability: float = option(
        0.0, "--xtc-probability", env="LLAMA_ARG_XTC_PROBABILITY", parse=parse_float(0, 1), metavar="P", help="0: off"
    )
    xtc_threshold: float = option(
        0.1,
        "--xtc-threshold",
        env="LLAMA_ARG_XTC_THRESHOLD",
        parse=parse_float(0, 0.5),
        metavar="P",
        help="share that XTC may exclude",
    )
    dry_multiplier: float = option(
        0.0, "--dry-multiplier", env="LLAMA_ARG_DRY_MULTIPLIER", parse=parse_float(0, 100), metavar="F", help="0: off"
    )
    dry_base: float = option(
        1.75, "--dry-base", env="LLAMA_ARG_DRY_BASE", parse=parse_float(1, 100), metavar="F", help="growth per token"
    )
    dry_allowed_length: int = option(
        2,
        "--dry-allowed-length",
        env="LLAMA_ARG_DRY_ALLOWED_LENGTH",
        parse=parse_int(0),
        metavar="N",
        help="repeats left alone",
    )
    dry_penalty_last_n: int = option(
        0,
        "--dry-penalty-last-n",
        env="LLAMA_ARG_DRY_PENALTY_LAST_N",
        parse=parse_int(-1),
        metavar="N",
        help="tokens looked back (0: all)",
    )
    dry_sequence_breakers: tuple[str, ...] = field(
        default=("\n", ":", '"', "*"),
        metadata=option(
            None,
            "--dry-sequence-breaker",
            "--dry-sequence-breakers",
            parse=lambda text: (text,),
            metavar="TEXT",
            help='text that ends a repeat (default: newline, ":", a double quote and "*")',
        ).metadata,
    )
    mirostat: int = option(0, "--mirostat", env="LLAMA_ARG_MIROSTAT", parse=parse_int(0, 2), metavar="N", help="0: off")
    mirostat_eta: float = option(
        0.1, "--mirostat-lr", env="LLAMA_ARG_MIROSTAT_LR", parse=parse_float(0, 100), metavar="F", help="learning rate (eta)"
    )
    mirostat_tau: float = option(
        5.0,
        "--mirostat-ent",
        env="LLAMA_ARG_MIROSTAT_ENT",
        parse=parse_float(0, 100),
        metavar="F",
        help="target surprise (tau)",
    )
    dynatemp_range: float = option(
        0.0, "--dynatemp-range", env="LLAMA_ARG_DYNATEMP_RANGE", parse=parse_float(0, 100), metavar="F", help="0: off"
    )
    dynatemp_exponent: float = option(
        1.0,
        "--dynatemp-exp",
        env="LLAMA_ARG_DYNATEMP_EXP",
        parse=parse_float(0, 100),
        metavar="F",
        help="shape of the range",
    )
    loop_detection: str = option(
        "",
        "--loop-detection",
        env="MLXCEL_LOOP_DETECTION",
        metavar="POLICY",
        help="end answers that repeat themselves: off, on or MIN,MAX,COUNT (default: on for Gemma 4, else off)",
    )
    ignore_eos: bool = switch(False, "--ignore-eos", env="LLAMA_ARG_IGNORE_EOS", help="do not stop at the end-of-turn token")
    logit_bias: tuple[tuple[int, float], ...] = field(
        default=(),
        metadata=option(
            None, "-l", "--logit-bias", parse=parse_logit_bias, metavar="ID+BIAS", help="bias of a token, comma separated"
        ).metadata,
    )

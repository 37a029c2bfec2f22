"""Options that name a model and how it is computed."""

from __future__ import annotations

from dataclasses import dataclass

from mlxcel.config.option import option, parse_int, switch


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Model"""

    model: str = option(
        "",
        "-m",
        "--model",
        env="LLAMA_ARG_MODEL",
        metavar="M",
        help="checkpoint folder, .gguf file, owner/name or smollm2-135m",
    )
    hf_repo: str = option(
        "", "-hf", "-hfr", "--hf-repo", env="LLAMA_ARG_HF_REPO", metavar="REPO", help="hub repository; wins over --model"
    )
    hf_token: str = option(
        "", "--hf-token", env=("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"), metavar="T", help="hub access token"
    )
    offline: bool = switch(False, "--offline", env="LLAMA_ARG_OFFLINE", help="never touch the network for a model")
    revision: str = option("main", "--revision", metavar="REV", help="hub revision")
    alias: str = option(
        "",
        "-a",
        "--alias",
        env="LLAMA_ARG_ALIAS",
        metavar="NAMES",
        help="comma list of model names; the first (sorted) is shown",
    )
    store_root: str = option(
        "",
        "--model-store-root",
        env=("MLXCEL_MODELS_DIR", "MLXCEL_CACHE_DIR"),
        metavar="DIR",
        help="where downloads are kept (default ~/.cache/mlxcel/models)",
    )
    device: str = option(
        "auto",
        "--device",
        "-dev",
        env=("MLXCEL_DEVICE", "LLAMA_ARG_DEVICE"),
        choices=("auto", "cpu", "cuda", "mps"),
        help="compute device",
    )
    dtype: str = option("auto", "--dtype", env="MLXCEL_DTYPE", choices=("auto", "fp32", "bf16", "fp16"), help="compute type")
    threads: int = option(
        0,
        "-t",
        "--threads",
        env="LLAMA_ARG_THREADS",
        parse=parse_int(-1, 1024),
        metavar="N",
        help="CPU threads (0: all cores)",
    )
    backend: str = option(
        "auto",
        "--backend",
        env="MLXCEL_BACKEND",
        choices=("auto", "native", "transformers"),
        help="which decoder runs the model",
    )
    kernels: str = option(
        "auto",
        "--kernels",
        env="MLXCEL_KERNELS",
        choices=("auto", "off"),
        help="compiled CPU kernels: where they fit, or never",
    )
    trust_remote_code: bool = switch(
        False, "--trust-remote-code", env="MLXCEL_TRUST_REMOTE_CODE", help="run Python code that a checkpoint carries"
    )

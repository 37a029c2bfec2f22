"""How a causal model is to be run: everything the command line can say about it, already parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mlxcel.core.errors import StartupError
from mlxcel.runners.generate.decoder.rope import rope_parameters

BLOCK_TOKENS = 16  # tokens per KV block, for every decoder

KvType = Literal["auto", "bf16", "fp32", "int8"]


@dataclass(frozen=True, slots=True)
class RopeOverrides:
    """Operator's position scaling (llama-server's ``--rope-*`` and ``--yarn-*``). None keeps what the checkpoint says.

    Attributes:
        scaling: method; "none" switches the checkpoint's own scaling off.
        scale: the window grows by this factor.
        freq_base: rope theta.
        freq_scale: inverse of ``scale``; used when ``scale`` is None.
        yarn_orig_ctx: trained window in tokens.
        yarn_ext_factor: weight of the extrapolated dimensions; negative is automatic (1).
        yarn_attn_factor: factor on the attention magnitude.
        yarn_beta_slow, yarn_beta_fast: rotations where the ramp ends and starts.
    """

    scaling: Literal["none", "linear", "yarn"] | None = None
    scale: float | None = None
    freq_base: float | None = None
    freq_scale: float | None = None
    yarn_orig_ctx: int | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_slow: float | None = None
    yarn_beta_fast: float | None = None

    @property
    def active(self) -> bool:
        return self != RopeOverrides()

    def apply(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of a model config with these overrides; ``max_position_embeddings`` becomes the trained window.

        Raises:
            StartupError: a value is out of range.
        """
        factor = self._factor()
        parameters = rope_parameters(config)
        window = int(config.get("max_position_embeddings") or 0)
        if self.scaling is not None or factor is not None:
            trained = int(self.yarn_orig_ctx or parameters.get("original_max_position_embeddings") or window)
            kept = {key: parameters[key] for key in ("rope_theta", "partial_rotary_factor") if key in parameters}
            parameters = kept | self._scaling_parameters(factor or 1.0, trained)
            window = trained
        if self.freq_base is not None:
            parameters["rope_theta"] = self.freq_base
        changed = {key: value for key, value in config.items() if key not in ("rope_scaling", "rope_theta")}
        return changed | {"rope_parameters": parameters, "max_position_embeddings": window}

    def _factor(self) -> float | None:
        for flag, value in (("--rope-scale", self.scale), ("--rope-freq-scale", self.freq_scale)):
            if value is not None and not value > 0:
                raise StartupError(f"{flag} must be greater than 0")
        if self.freq_base is not None and not self.freq_base > 0:
            raise StartupError("--rope-freq-base must be greater than 0")
        if self.scale is not None:
            return self.scale
        return None if self.freq_scale is None else 1.0 / self.freq_scale

    def _scaling_parameters(self, factor: float, trained_tokens: int) -> dict[str, Any]:
        method = self.scaling or "linear"
        if method == "none":
            return {"rope_type": "default"}
        if method == "linear":
            return {"rope_type": "linear", "factor": factor}
        extrapolates = self.yarn_ext_factor is not None and self.yarn_ext_factor >= 0
        named = {
            "attention_factor": self.yarn_attn_factor,
            "beta_slow": self.yarn_beta_slow,
            "beta_fast": self.yarn_beta_fast,
            "extrapolation_factor": self.yarn_ext_factor if extrapolates else None,
        }
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": trained_tokens,
            **{key: value for key, value in named.items() if value is not None},
        }


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """Settings of one runner.

    Attributes:
        name: display name and request id of the model.
        threads: compute threads; 0 keeps torch's choice.
        context_tokens: window of one row; 0 is the model's own, a larger value than the model's is clamped.
        max_rows: rows that can be open at once.
        kv_block_count: KV blocks of ``BLOCK_TOKENS`` tokens; 0 derives it from ``kv_budget_bytes`` and the window.
        kv_budget_bytes: cap on the KV pool; 0 is half of the memory that is free.
        kv_types: storage of keys and of values; "auto" is the decoder's own type.
        backend: "native" or "transformers" insists on a path; "auto" takes the fastest that serves the model.
        kernels: "off" forbids the compiled kernels.
        adapters: LoRA adapters; a row names them by their place here.
    """

    name: str = "model"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    threads: int = 0
    context_tokens: int = 0
    max_rows: int = 4
    kv_block_count: int = 0
    kv_budget_bytes: int = 0
    kv_types: tuple[KvType, KvType] = ("auto", "auto")
    backend: Literal["auto", "native", "transformers"] = "auto"
    kernels: Literal["auto", "off"] = "auto"
    trust_remote_code: bool = False
    adapters: tuple[Path, ...] = ()
    rope: RopeOverrides = field(default_factory=RopeOverrides)

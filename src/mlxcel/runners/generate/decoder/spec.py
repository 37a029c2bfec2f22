"""What a dense decoder-only model is made of, read from its config: the one description every native decoder is built from.

The native families share one block::

    x += residual_multiplier * o_proj(attention(norm_1(x)))
    x += residual_multiplier * down_proj(activation(gate_proj(norm_2(x))) * up_proj(norm_2(x)))

and differ in what :class:`DecoderSpec` records. Everything else is served through transformers' own modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mlxcel.runners.generate.decoder.rope import SCALING_METHODS, RopeSpec, build_rope, rope_parameters, scaled_window_tokens

Activation = Literal["silu", "gelu", "gelu_tanh", "relu2"]

_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu2": "relu2",
}


@dataclass(frozen=True, slots=True)
class LayerNames:
    """Checkpoint names of one layer's matrices, without the ``.weight`` or ``.bias`` suffix."""

    input_norm: str
    q: str
    k: str
    v: str
    o: str
    q_norm: str
    k_norm: str
    mlp_norm: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True, eq=False)
class DecoderSpec:
    """A dense decoder-only model.

    Attributes:
        family: ``model_type`` of the config.
        context_tokens: the model's own window.
        norm_eps: epsilon of every RMS norm, ``x * rsqrt(mean(x^2) + eps) * weight`` (the mean in float32).
        activation: gate activation.
        rope: rotation of queries and keys.
        rope_layers: per layer, False for a layer without positions (NoPE).
        windows: per layer, 0 for full attention, else W: a token sees the last W positions, its own included.
        qk_norm: RMS norm over each head of q and k (weights [head_dim]) before the rotation.
        qkv_bias, o_bias, mlp_bias: which projections carry a bias.
        tied: the vocabulary projection is the embedding matrix.
        attention_scale: factor on the scores ``q . k``.
        embedding_multiplier, residual_multiplier: factors on the embedding and on each block's output.
        logit_multiplier: factor on the logits.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_count: int
    head_count: int
    kv_head_count: int
    head_dim: int
    context_tokens: int
    norm_eps: float
    rope: RopeSpec
    rope_layers: tuple[bool, ...]
    windows: tuple[int, ...]
    attention_scale: float
    activation: Activation = "silu"
    qk_norm: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    tied: bool = False
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logit_multiplier: float = 1.0

    embedding_name: str = "model.embed_tokens"
    final_norm_name: str = "model.norm"

    @property
    def head_name(self) -> str:
        """The vocabulary projection's name; the embedding's when tied."""
        return self.embedding_name if self.tied else "lm_head"

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.head_count // self.kv_head_count

    @property
    def q_size(self) -> int:
        return self.head_count * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_head_count * self.head_dim

    def layer_names(self, layer: int) -> LayerNames:
        """Checkpoint names of layer ``layer``."""
        base = f"model.layers.{layer}"
        return LayerNames(
            input_norm=f"{base}.input_layernorm",
            q=f"{base}.self_attn.q_proj",
            k=f"{base}.self_attn.k_proj",
            v=f"{base}.self_attn.v_proj",
            o=f"{base}.self_attn.o_proj",
            q_norm=f"{base}.self_attn.q_norm",
            k_norm=f"{base}.self_attn.k_norm",
            mlp_norm=f"{base}.post_attention_layernorm",
            gate=f"{base}.mlp.gate_proj",
            up=f"{base}.mlp.up_proj",
            down=f"{base}.mlp.down_proj",
        )

    def tensor_names(self) -> Iterator[str]:
        """Every tensor a decoder reads."""
        yield f"{self.embedding_name}.weight"
        yield f"{self.final_norm_name}.weight"
        yield f"{self.head_name}.weight"
        for names in map(self.layer_names, range(self.layer_count)):
            head_norms = (names.q_norm, names.k_norm) if self.qk_norm else ()
            matrices = (names.q, names.k, names.v, names.o, names.gate, names.up, names.down)
            yield from (f"{name}.weight" for name in (names.input_norm, names.mlp_norm, *head_norms, *matrices))
            yield from (f"{name}.bias" for name in (names.q, names.k, names.v) if self.qkv_bias)
            yield from (f"{name}.bias" for name in (names.o,) if self.o_bias)
            yield from (f"{name}.bias" for name in (names.gate, names.up, names.down) if self.mlp_bias)

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes that keys and values of one token take over all layers."""
        return 2 * self.layer_count * self.kv_size * element_bytes


@dataclass(frozen=True, slots=True)
class _Family:
    """What a family fixes in code rather than in its config, and its defaults for absent fields."""

    context_tokens: int
    theta: float = 10_000.0
    tied: bool = False
    qkv_bias: bool | None = None  # None: the config's attention_bias decides for q, k, v and o alike
    qk_norm: bool = False
    reads_mlp_bias: bool = False
    reads_multipliers: bool = False
    windows: Literal["none", "all", "late", "listed"] = "none"
    window_tokens: int = 0
    window_switch: bool = False  # windows count only where use_sliding_window says so
    nope_interval: int = 0
    kv_head_count: int = 0  # 0: as many as query heads


_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(context_tokens=2048, reads_mlp_bias=True),
    "mistral": _Family(context_tokens=131_072, qkv_bias=False, windows="all", window_tokens=4096, kv_head_count=8),
    "ministral": _Family(context_tokens=131_072, qkv_bias=False, windows="listed", window_tokens=4096, kv_head_count=8),
    "qwen2": _Family(
        context_tokens=32_768, qkv_bias=True, windows="late", window_tokens=4096, window_switch=True, kv_head_count=32
    ),
    "qwen3": _Family(
        context_tokens=32_768, qk_norm=True, windows="late", window_tokens=4096, window_switch=True, kv_head_count=32
    ),
    "smollm3": _Family(
        context_tokens=32_768,
        theta=2_000_000.0,
        tied=True,
        reads_mlp_bias=True,
        windows="listed",
        window_switch=True,
        nope_interval=4,
        kv_head_count=4,
    ),
    "granite": _Family(context_tokens=2048, reads_mlp_bias=True, reads_multipliers=True),
}


def native_families() -> tuple[str, ...]:
    """``model_type`` values that :func:`spec_from_config` knows."""
    return tuple(_FAMILIES)


def spec_from_config(config: Mapping[str, Any]) -> DecoderSpec | None:
    """Describe a checkpoint, or None when it is not of a native family or uses something the block above lacks.

    Args:
        config: a config in the layout of transformers' ``config.json``.

    Raises:
        KeyError: a field without a default is missing.
    """
    family = _FAMILIES.get(str(config.get("model_type")))
    if family is None:
        return None
    parameters = rope_parameters(config, family.theta)
    activation = _ACTIVATIONS.get(str(config.get("hidden_act") or "silu"))
    per_layer_kind = any(isinstance(value, Mapping) for value in parameters.values())
    if activation is None or per_layer_kind or parameters["rope_type"] not in SCALING_METHODS:
        return None
    head_count, layer_count = int(config["num_attention_heads"]), int(config["num_hidden_layers"])
    head_dim = int(config.get("head_dim") or (128 if family.qk_norm else config["hidden_size"] // head_count))
    trained_tokens = int(config.get("max_position_embeddings") or family.context_tokens)
    attention_bias = bool(config.get("attention_bias", False))
    multipliers = config if family.reads_multipliers else {}
    rope_layers = _rope_layers(config, family, layer_count)
    return DecoderSpec(
        family=str(config["model_type"]),
        vocab_size=int(config["vocab_size"]),
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        layer_count=layer_count,
        head_count=head_count,
        kv_head_count=int(config.get("num_key_value_heads") or family.kv_head_count or head_count),
        head_dim=head_dim,
        context_tokens=scaled_window_tokens(parameters, trained_tokens),
        norm_eps=float(config.get("rms_norm_eps") or 1e-6),
        rope=build_rope(parameters, head_dim, trained_tokens),
        rope_layers=rope_layers,
        windows=_windows(config, family, rope_layers),
        # Granite's attention_multiplier replaces 1/sqrt(head_dim) rather than adding to it.
        attention_scale=float(multipliers.get("attention_multiplier", 1.0)) if multipliers else head_dim**-0.5,
        activation=activation,
        qk_norm=family.qk_norm,
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        o_bias=attention_bias and family.qkv_bias is None,
        mlp_bias=family.reads_mlp_bias and bool(config.get("mlp_bias", False)),
        tied=bool(config.get("tie_word_embeddings", family.tied)),
        embedding_multiplier=float(multipliers.get("embedding_multiplier", 1.0)),
        residual_multiplier=float(multipliers.get("residual_multiplier", 1.0)),
        logit_multiplier=1.0 / float(multipliers.get("logits_scaling", 1.0)),
    )


def _rope_layers(config: Mapping[str, Any], family: _Family, layer_count: int) -> tuple[bool, ...]:
    if not family.nope_interval:
        return (True,) * layer_count
    listed = config.get("no_rope_layers")  # 1 marks a layer *with* positions
    if listed is not None:
        return tuple(bool(flag) for flag in listed[:layer_count])
    interval = int(config.get("no_rope_layer_interval") or family.nope_interval)
    return tuple((layer + 1) % interval != 0 for layer in range(layer_count))


def _windows(config: Mapping[str, Any], family: _Family, rope_layers: tuple[bool, ...]) -> tuple[int, ...]:
    """Attention window of each layer in tokens; 0 is unlimited."""
    layer_count = len(rope_layers)
    window = int(config.get("sliding_window", family.window_tokens) or 0)
    switched_off = family.window_switch and not config.get("use_sliding_window", False)
    if family.windows == "none" or not window or switched_off:
        return (0,) * layer_count
    listed = None if family.windows == "all" else config.get("layer_types")
    if listed is not None:
        return tuple(window if kind == "sliding_attention" else 0 for kind in listed[:layer_count])
    if family.windows == "late":
        first = int(config.get("max_window_layers", 28))
        return tuple(window if layer >= first else 0 for layer in range(layer_count))
    if family.nope_interval:
        return tuple(0 if rotated else window for rotated in rope_layers)
    return (window,) * layer_count

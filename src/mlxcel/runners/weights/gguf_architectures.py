"""From GGUF metadata to a Hugging Face configuration, and from GGUF tensor names to Hugging Face names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlxcel.core.errors import StartupError
from mlxcel.runners.weights.gguf_file import GgufFile
from mlxcel.runners.weights.gguf_recipes import Part, Recipe, unpermuted

_GLOBAL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}


@dataclass(frozen=True, slots=True)
class Description:
    """What a GGUF file holds, in Hugging Face terms."""

    config: dict[str, Any]
    generation_config: dict[str, Any]
    recipes: dict[str, Recipe]


def describe(file: GgufFile) -> Description:
    """Translate a file's metadata and tensor directory. Raises StartupError for an unsupported architecture."""
    architecture = file.metadata.get("general.architecture")
    if architecture not in _MODEL_TYPES:
        raise StartupError(f"{file.path}: GGUF architecture {architecture!r} is not supported")
    config = _config(file, architecture)
    recipes: dict[str, Recipe] = {}
    for name in file.tensors:
        stem, _, suffix = name.rpartition(".")
        if stem in _GLOBAL_NAMES:
            recipes[f"{_GLOBAL_NAMES[stem]}.{suffix}"] = Recipe((Part(name),))
            continue
        if not stem.startswith("blk."):
            continue
        _, layer, block = stem.split(".", 2)
        order = None
        if architecture == "llama" and block in ("attn_q", "attn_k"):
            order = unpermuted(config["num_attention_heads" if block == "attn_q" else "num_key_value_heads"])
        recipes[f"model.layers.{layer}.{_BLOCK_NAMES[block]}.{suffix}"] = Recipe((Part(name, order=order),))
    return Description(config, {"eos_token_id": config.get("eos_token_id")}, recipes)


def _config(file: GgufFile, architecture: str) -> dict[str, Any]:
    def field(key: str, default: Any = None) -> Any:
        return file.metadata.get(f"{architecture}.{key}", default)

    heads = field("attention.head_count")
    return {
        "model_type": _MODEL_TYPES[architecture],
        "hidden_size": field("embedding_length"),
        "num_hidden_layers": field("block_count"),
        "intermediate_size": field("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": field("attention.head_count_kv", heads),
        "head_dim": field("attention.key_length", field("embedding_length") // heads),
        "max_position_embeddings": field("context_length"),
        "rms_norm_eps": field("attention.layer_norm_rms_epsilon"),
        "rope_theta": field("rope.freq_base", 10000.0),
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.metadata.get("tokenizer.ggml.eos_token_id"),
    }

"""Tiny random Hugging Face checkpoints of any causal architecture that transformers knows.

A checkpoint is a real folder: ``config.json``, ``model.safetensors``, ``generation_config.json`` and the tokenizer of
:mod:`mlxcel.testing.tiny_tokenizer`. The weights are random but not flat: logits differ enough that a wrong layer changes
the greedy token, and norms, biases and router corrections are perturbed so that a loader that drops them is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from mlxcel.testing.tiny_tokenizer import END_OF_TEXT_ID, TURN_END_ID, VOCAB_TOKENS, write_tiny_tokenizer

# Families with their own native or tested path; every other one that transformers knows works through the same shrinking.
FAMILIES: Final = (
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_5_text", "gemma",
    "gemma2", "gemma3_text", "phi", "phi3", "olmo2", "cohere2", "glm4", "glm4_moe", "granite", "gpt_oss",
    "deepseek_v3", "llama4_text", "smollm3", "starcoder2", "stablelm", "lfm2", "mamba", "mamba2", "falcon_mamba",
    "falcon_h1", "nemotron_h", "bamba", "rwkv", "jamba", "recurrent_gemma", "gpt2", "gpt_neox", "mpt", "bloom", "opt",
    "falcon", "dbrx",
)  # fmt: skip

_HIDDEN: Final = 64
_HEADS: Final = 4
_HEAD_DIM: Final = 16
_KV_HEADS: Final = 2
_FFN: Final = 96
_LAYERS: Final = 2
_WINDOW_TOKENS: Final = 16
_EXPERTS: Final = 4
_POSITIONS: Final = 1024
_POSITION_FIELDS: Final = (
    "max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "max_sequence_length", "context_length",
)  # fmt: skip


def _sizes() -> dict[str, Any]:
    """Well-known config fields and their tiny values; a config gets those it has."""
    groups: tuple[tuple[Any, str], ...] = (
        (VOCAB_TOKENS, "vocab_size decoder_vocab_size unpadded_vocab_size vocab_size_per_layer_input"),
        (
            _HIDDEN,
            "hidden_size d_model n_embd embedding_size word_embed_proj_dim dim emb_dim embedding_dim "
            "input_embedding_size output_embedding_size lru_width moe_latent_size backbone_hidden_size router_hidden_size "
            "hidden_size_global adapter_in_dim adapter_out_dim adapter_input_size",
        ),
        (
            _FFN,
            "intermediate_size n_inner ffn_dim encoder_ffn_dim decoder_ffn_dim dff dim_ff d_inner ffn_hidden_size "
            "moe_intermediate_size expert_ffn_hidden_size shared_expert_intermediate_size shared_intermediate_size "
            "moe_shared_expert_intermediate_size dense_intermediate_size intermediate_size_mlp feed_forward_size "
            "shared_experts_intermediate_size",
        ),
        (
            _LAYERS,
            "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers "
            "num_decoder_layers num_blocks",
        ),
        (
            _HEADS,
            "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
            "num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads",
        ),
        (_KV_HEADS, "num_key_value_heads num_kv_heads kv_n_heads swa_num_key_value_heads num_query_groups"),
        (
            _HEAD_DIM,
            "head_dim swa_head_dim global_head_dim attention_head_size dim_head d_head kv_channels "
            "v_head_dim index_head_dim qk_nope_head_dim qk_rope_head_dim linear_key_head_dim linear_value_head_dim "
            "linear_head_dim mamba_d_head mamba_head_dim mamba_headdim",
        ),
        (8, "index_n_heads"),  # fewer, and most of an indexer's scores are the same zero: which ones win is then undefined
        (8, "rotary_dim mamba_d_state ssm_state_size state_size mamba_chunk_size chunk_size time_step_rank"),
        (32, "q_lora_rank kv_lora_rank o_lora_rank adapter_rank hidden_size_per_layer_input"),
        (
            _EXPERTS,
            "num_experts n_routed_experts num_local_experts moe_num_experts linear_num_value_heads linear_num_heads",
        ),
        (2 * _HIDDEN // _HEAD_DIM, "mamba_n_heads n_mamba_heads mamba_num_heads"),
        (2, "num_experts_per_tok num_experts_per_token moe_topk moe_k linear_num_key_heads"),
        (1, "n_shared_experts num_shared_experts moe_num_shared_experts n_group num_expert_group topk_group mamba_n_groups"),
        (1, "n_groups first_k_dense_replace num_dense_layers moe_layer_start_index mamba_ngroups decoder_sparse_step"),
        (_WINDOW_TOKENS, "sliding_window sliding_window_size attention_window_size attention_chunk_size local_attention"),
        (_WINDOW_TOKENS, "window_size index_topk"),
        (_POSITIONS, " ".join(_POSITION_FIELDS)),
        (0, "num_nextn_predict_layers num_kv_shared_layers"),
    )
    return {name: value for value, names in groups for name in names.split()}


# Some configs leave these unset although their model cannot be built without them.
_NEVER_NONE: Final = frozenset(
    {"head_dim", "num_key_value_heads", "n_routed_experts", "n_shared_experts", "num_experts_per_tok"}
)

# Lists with one entry a layer that name the layer's kind; a tiny model has one layer of each kind.
_LAYER_KIND_FIELDS: Final = ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types")

# What field names alone cannot tell: shapes that constrain one another, and patterns that mix the kinds of layers.
_FAMILY_FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 512},
    "bloom": {"tie_word_embeddings": False},  # tied, its greedy token would always be the token fed
    "dbrx": {"attn_config": {"kv_n_heads": _KV_HEADS, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "dory": {
        "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp", "full_attention", "mlp"],
        "num_hidden_layers": 6,
        "n_input_layers": 2,
        "n_recurrent_layers": 2,
        "n_output_layers": 2,
    },
    "falcon_h1": {"mamba_d_ssm": 2 * _HIDDEN, "mamba_d_head": _HEAD_DIM},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "llama4_text": {"no_rope_layer_interval": 2, "interleave_moe_layer_step": 2},
    "mamba2": {"num_heads": 2 * _HIDDEN // _HEAD_DIM},
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"axial_pos_shape": [32, 32], "axial_pos_embds_dim": [16, 48]},
    "xmod": {"default_language": "en_XX"},
    "xlstm": {"qk_dim_factor": 1.0},
    "zamba": {"num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "hybrid"]},
}


# Buffers that are stored and loaded but follow from the config; noise would make them contradict one another.
_DERIVED_BUFFERS: Final = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")

_TOKEN_IDS: Final[Mapping[str, int]] = {
    "bos_token_id": END_OF_TEXT_ID,
    "eos_token_id": TURN_END_ID,
    "pad_token_id": END_OF_TEXT_ID,
}


def causal_families() -> tuple[str, ...]:
    """Every model type that transformers has a causal language model for."""
    return tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_config(family: str, **overrides: Any) -> PreTrainedConfig:
    """A tiny configuration of a model type; ``overrides`` are set last and win.

    Raises:
        KeyError: transformers knows no such model type.
    """
    config_class = CONFIG_MAPPING[family]
    fields = _tiny_fields(config_class()) | overrides
    layers = overrides.get("num_hidden_layers")
    if layers is not None:
        for name in _LAYER_KIND_FIELDS:
            if name in fields and name not in overrides:
                fields[name] = (fields[name] * layers)[:layers]
    return config_class(**fields)


def write_tiny_checkpoint(family: str, folder: Path, *, seed: int = 0, dtype: str = "float32", **overrides: Any) -> Path:
    """Write a tiny random causal checkpoint and return ``folder``.

    Args:
        family: transformers model type, such as ``"qwen3"``; see :data:`FAMILIES` and :func:`causal_families`.
        folder: created when missing.
        seed: of the weights; the same seed gives the same bytes. The global generator is left as it was.
        dtype: of the stored weights: "float32", "bfloat16" or "float16".
        overrides: config fields, such as ``num_hidden_layers=4`` or ``vocab_size=600``.
    """
    config = tiny_config(family, **overrides)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    _randomise(model, torch.Generator().manual_seed(seed))
    model.generation_config = GenerationConfig(
        bos_token_id=END_OF_TEXT_ID, eos_token_id=[TURN_END_ID, END_OF_TEXT_ID], pad_token_id=END_OF_TEXT_ID
    )
    folder.mkdir(parents=True, exist_ok=True)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return write_tiny_tokenizer(folder)


def _tiny_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """Constructor arguments that make a config of this class tiny, its sub-configs included."""
    return _shrunk_fields(config) | dict(_FAMILY_FIELDS.get(config.model_type, {}))


def _shrunk_fields(config: PreTrainedConfig) -> dict[str, Any]:
    defaults = vars(config)
    fields: dict[str, Any] = {}
    for name, size in _sizes().items():
        default = defaults.get(name)
        if isinstance(default, int) and not isinstance(default, bool):
            fields[name] = min(size, default) if name not in _POSITION_FIELDS else size
        elif default is None and name in defaults and name in _NEVER_NONE:
            fields[name] = size
    if "is_decoder" in defaults:
        fields["is_decoder"] = True
    kinds = {name: _distinct(defaults[name]) for name in _LAYER_KIND_FIELDS if isinstance(defaults.get(name), list)}
    if kinds:
        layers = max(_LAYERS, *(len(names) for names in kinds.values()))
        fields |= {name: names + names[-1:] * (layers - len(names)) for name, names in kinds.items()}
        fields |= {name: layers for name in ("num_hidden_layers", "n_layers", "num_layers") if name in fields}
    if "kv_lora_rank" in fields:  # latent attention expands to every head
        fields["num_key_value_heads"] = _HEADS
    media_id = 256
    for name, value in defaults.items():
        if isinstance(value, PreTrainedConfig):
            fields[name] = {"model_type": value.model_type} | _tiny_fields(value)
        elif name.endswith(("_token_id", "_token_index")) and isinstance(value, int):
            fields[name] = media_id
            media_id += 1
    return fields | {name: _TOKEN_IDS[name] for name in _TOKEN_IDS if name in fields or name in defaults}


def _distinct(kinds: list[str]) -> list[str]:
    return list(dict.fromkeys(kinds))


@torch.no_grad()
def _randomise(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Matrices that start near zero get unit gain; everything else keeps its meaning and gets a little noise.

    Embeddings stay small beside the blocks' outputs, else a model with tied embeddings would repeat the token it was fed.
    """
    embeddings = {module.weight.data_ptr() for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point() or tensor.numel() == 0 or tensor.data_ptr() in seen:
            continue
        if name.endswith(_DERIVED_BUFFERS):
            continue
        seen.add(tensor.data_ptr())
        noise = torch.randn(tensor.shape, generator=generator)
        if tensor.data_ptr() in embeddings:
            tensor.copy_(noise * 0.25 * tensor.shape[-1] ** -0.5)
        elif tensor.dim() >= 2 and tensor.float().std() < 0.05:
            tensor.copy_(noise * tensor.shape[-1] ** -0.5)
        else:
            tensor.add_(noise * 0.1)

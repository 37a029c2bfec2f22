"""Configuration fields that one GGUF key does not give by itself; each function serves the families that name it."""

from __future__ import annotations

import math
from typing import Any

from mlxcel.runners.weights.gguf.metadata import Metadata
from mlxcel.runners.weights.gguf.rope import rope_parameters

_SIGMOID_GATING = 2  # llama.cpp's expert_gating_func
_LLAMA4_EXPERTS_WITHOUT_NORM = 128  # Maverick; the file does not say whether queries and keys are normalised


def head_dim(metadata: Metadata) -> int:
    """Size of one query and key head."""
    size = metadata.get("attention.key_length")
    if size is None:
        size = metadata.need("embedding_length") // metadata.largest("attention.head_count")
    return int(size)


def layer_types(metadata: Metadata, full_every: int) -> list[str]:
    """Sliding or full attention per layer; ``full_every`` is the family's own period, used when the file does not say."""
    pattern = metadata.get("attention.sliding_window_pattern", full_every)
    count = metadata.need("block_count")
    sliding = pattern if isinstance(pattern, list) else [(layer + 1) % pattern != 0 for layer in range(count)]
    return ["sliding_attention" if flag else "full_attention" for flag in sliding[:count]]


def plain_rope(metadata: Metadata) -> dict[str, Any]:
    return {"rope_parameters": rope_parameters(metadata, head_dim(metadata))}


def nothing(metadata: Metadata) -> dict[str, Any]:
    """Families whose every field has a key of its own."""
    return {}


def llama(metadata: Metadata) -> dict[str, Any]:
    biased = {"attention_bias": "blk.0.attn_q.bias" in metadata.tensors, "mlp_bias": "blk.0.ffn_up.bias" in metadata.tensors}
    return plain_rope(metadata) | {"head_dim": head_dim(metadata)} | biased


def headed(metadata: Metadata) -> dict[str, Any]:
    """Families whose configuration states the head size."""
    return plain_rope(metadata) | {"head_dim": head_dim(metadata)}


def windowed(metadata: Metadata) -> dict[str, Any]:
    """Every fourth layer attends to everything, the others to a window; without a window all do."""
    window = metadata.get("attention.sliding_window")
    if not window:
        count = metadata.need("block_count")
        return headed(metadata) | {"sliding_window": None, "layer_types": ["full_attention"] * count}
    return headed(metadata) | {"sliding_window": window, "layer_types": layer_types(metadata, 4)}


def gemma(metadata: Metadata) -> dict[str, Any]:
    return headed(metadata) | {"hidden_activation": "gelu_pytorch_tanh"}


def gemma2(metadata: Metadata) -> dict[str, Any]:
    return gemma(metadata) | {
        "layer_types": layer_types(metadata, 2),
        "query_pre_attn_scalar": _query_scalar(metadata, layers_of_largest=46),
    }


def gemma3(metadata: Metadata) -> dict[str, Any]:
    return gemma(metadata) | {
        "layer_types": layer_types(metadata, 6),
        "query_pre_attn_scalar": _query_scalar(metadata, layers_of_largest=62),
        "rope_parameters": _two_ropes(metadata, local_theta=10000.0),
    }


def _query_scalar(metadata: Metadata, layers_of_largest: int) -> int:
    """GGUF does not store it: it is the head size, but hidden size / heads in the 27B models, known by their depth."""
    if metadata.need("block_count") == layers_of_largest:
        return int(metadata.need("embedding_length") // metadata.need("attention.head_count"))
    return head_dim(metadata)


def _two_ropes(metadata: Metadata, local_theta: float | None = None) -> dict[str, Any]:
    full = rope_parameters(metadata, head_dim(metadata))
    theta = metadata.get("rope.freq_base_swa", local_theta or full["rope_theta"])
    return {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": theta}}


def olmo2(metadata: Metadata) -> dict[str, Any]:
    """OLMo 2, or OLMo 3 when there is a window; both use one GGUF architecture."""
    if not metadata.get("attention.sliding_window"):
        return plain_rope(metadata)
    return {
        "model_type": "olmo3",
        "sliding_window": metadata.need("attention.sliding_window"),
        "layer_types": layer_types(metadata, 4),
        "rope_parameters": _two_ropes(metadata),
    }


def phi3(metadata: Metadata) -> dict[str, Any]:
    """A window of 0 marks the models that have none."""
    fields = plain_rope(metadata) | {"sliding_window": metadata.get("attention.sliding_window") or None}
    return fields | metadata.present({"original_max_position_embeddings": "rope.scaling.original_context_length"})


def stablelm(metadata: Metadata) -> dict[str, Any]:
    return plain_rope(metadata) | {
        "use_qkv_bias": "blk.0.attn_q.bias" in metadata.tensors,
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in metadata.tensors,
        "qk_layernorm": "blk.0.attn_q_norm.weight" in metadata.tensors,
    }


def cohere(metadata: Metadata) -> dict[str, Any]:
    return plain_rope(metadata) | {"use_qk_norm": "blk.0.attn_q_norm.weight" in metadata.tensors}


def granite(metadata: Metadata) -> dict[str, Any]:
    return plain_rope(metadata) | {"attention_bias": "blk.0.attn_q.bias" in metadata.tensors}


def gpt_oss(metadata: Metadata) -> dict[str, Any]:
    fields = headed(metadata) | {"layer_types": layer_types(metadata, 2)}
    if fields["rope_parameters"]["rope_type"] == "yarn":
        fields["rope_parameters"]["truncate"] = False
    return fields


def glm4_moe(metadata: Metadata) -> dict[str, Any]:
    """The blocks after the decoder's own predict further tokens and are left out."""
    return headed(metadata) | {
        "num_hidden_layers": metadata.need("block_count") - metadata.get("nextn_predict_layers", 0),
        "attention_bias": "blk.0.attn_q.bias" in metadata.tensors,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in metadata.tensors,
        "first_k_dense_replace": metadata.get("leading_dense_block_count", 0),
    }


def deepseek2(metadata: Metadata) -> dict[str, Any]:
    """DeepSeek V2, or V3 when the router is a sigmoid; Multi-head Latent Attention, https://arxiv.org/abs/2405.04434."""
    rotated = metadata.need("rope.dimension_count")
    latent = "attention.key_length_mla" in metadata
    rope = rope_parameters(metadata, rotated)
    if rope["rope_type"] == "yarn" and (multiplier := metadata.get("rope.scaling.yarn_log_multiplier")):
        rope |= {"mscale": multiplier / 0.1, "mscale_all_dim": multiplier / 0.1}
    fields = {
        "rope_parameters": rope,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": metadata.need("attention.key_length_mla" if latent else "attention.key_length") - rotated,
        "v_head_dim": metadata.need("attention.value_length_mla" if latent else "attention.value_length"),
        "num_key_value_heads": metadata.need("attention.head_count"),
        "q_lora_rank": metadata.get("attention.q_lora_rank"),
        "norm_topk_prob": metadata.get("expert_weights_norm", False),
        "head_dim": rotated,
    }
    corrected = any(name.endswith("exp_probs_b.bias") for name in metadata.tensors)
    if corrected or metadata.get("expert_gating_func") == _SIGMOID_GATING:
        return fields | {"model_type": "deepseek_v3"}
    grouped = metadata.get("expert_group_count", 1) > 1
    return fields | {"topk_method": "group_limited_greedy" if grouped else "greedy"}


def lfm2(metadata: Metadata) -> dict[str, Any]:
    """Layers without key/value heads are convolutions."""
    heads = metadata.need("attention.head_count_kv")
    return plain_rope(metadata) | {
        "num_key_value_heads": max(heads),
        "layer_types": ["full_attention" if count else "conv" for count in heads],
        "block_auto_adjust_ff_dim": False,
    }


def lfm2_moe(metadata: Metadata) -> dict[str, Any]:
    fields = lfm2(metadata)
    del fields["block_auto_adjust_ff_dim"]
    return fields | {"use_expert_bias": any(name.endswith("exp_probs_b.bias") for name in metadata.tensors)}


def mamba(metadata: Metadata) -> dict[str, Any]:
    inner, hidden = metadata.need("ssm.inner_size"), metadata.need("embedding_length")
    return {"expand": inner // hidden, "use_bias": False}


def mamba2(metadata: Metadata) -> dict[str, Any]:
    inner, heads = metadata.need("ssm.inner_size"), metadata.need("ssm.time_step_rank")
    return mamba(metadata) | {"num_heads": heads, "head_dim": inner // heads}


def jamba(metadata: Metadata) -> dict[str, Any]:
    """Periods of attention and expert layers, recovered from where they are."""
    heads = metadata.need("attention.head_count_kv")
    attention = [layer for layer, count in enumerate(heads) if count]
    experts = [layer for layer in range(len(heads)) if f"blk.{layer}.ffn_gate_inp.weight" in metadata.tensors]
    period, offset = _period(attention, len(heads))
    expert_period, expert_offset = _period(experts, len(heads))
    return {
        "num_key_value_heads": max(heads),
        "attn_layer_period": period,
        "attn_layer_offset": offset,
        "expert_layer_period": expert_period,
        "expert_layer_offset": expert_offset,
        "mamba_expand": metadata.need("ssm.inner_size") // metadata.need("embedding_length"),
    }


def _period(layers: list[int], count: int) -> tuple[int, int]:
    if not layers:
        return count + 1, count
    return (layers[1] - layers[0] if len(layers) > 1 else count), layers[0]


def granite_hybrid(metadata: Metadata) -> dict[str, Any]:
    """Attention layers are those with a key projection: the file's own head counts are zero in some releases."""
    layers = range(metadata.need("block_count"))
    attention = [f"blk.{layer}.attn_k.weight" in metadata.tensors for layer in layers]
    first = attention.index(True) if True in attention else 0
    kv_heads = metadata.largest("attention.head_count_kv")
    if not kv_heads and True in attention:
        kv_heads = metadata.shape(f"blk.{first}.attn_k.weight")[0] // head_dim(metadata)
    inner, heads = metadata.need("ssm.inner_size"), metadata.need("ssm.time_step_rank")
    return plain_rope(metadata) | {
        "layer_types": ["full_attention" if flag else "linear_attention" for flag in attention],
        "num_key_value_heads": kv_heads,
        "position_embedding_type": "rope" if metadata.get("rope.scaling.finetuned") else None,
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_expand": inner // metadata.need("embedding_length"),
        "num_local_experts": metadata.get("expert_count", 0),
        "num_experts_per_tok": metadata.get("expert_used_count", 0),
    }


def gpt2(metadata: Metadata) -> dict[str, Any]:
    return {"n_positions": metadata.shape("position_embd.weight")[0]}


def falcon(metadata: Metadata) -> dict[str, Any]:
    """Falcon 7B has one norm a block and one key/value head; 40B and later have two norms."""
    grouped = "blk.0.attn_norm_2.weight" in metadata.tensors
    return plain_rope(metadata) | {
        "new_decoder_architecture": grouped,
        "multi_query": metadata.need("attention.head_count_kv") == 1,
        "parallel_attn": True,
        "bias": False,
        "alibi": False,
    }


def llama4(metadata: Metadata) -> dict[str, Any]:
    step = metadata.get("interleave_moe_layer_step", 1)
    chunk = metadata.get("attention.chunk_size", 8192)
    count = metadata.need("block_count")
    return headed(metadata) | {
        "interleave_moe_layer_step": step,
        "moe_layers": [layer for layer in range(count) if f"blk.{layer}.ffn_gate_inp.weight" in metadata.tensors],
        "attention_chunk_size": chunk,
        "use_qk_norm": metadata.need("expert_count") != _LLAMA4_EXPERTS_WITHOUT_NORM,
    }


def ernie_moe(metadata: Metadata) -> dict[str, Any]:
    return headed(metadata) | {
        "moe_layer_start_index": metadata.need("leading_dense_block_count"),
        "moe_layer_end_index": metadata.need("block_count") - 1,
        "moe_layer_interval": metadata.get("interleave_moe_layer_step", 1),
    }


def mistral3(metadata: Metadata) -> dict[str, Any]:
    """Ministral 3: YaRN, and queries that grow with the position as in Llama 4."""
    fields = headed(metadata)
    rope = fields["rope_parameters"]
    if rope["rope_type"] == "yarn":
        multiplier = metadata.get("rope.scaling.yarn_log_multiplier", 0.0)
        rope |= {"mscale": multiplier, "mscale_all_dim": multiplier}
    rope["llama_4_scaling_beta"] = metadata.get("attention.temperature_scale", 0.0)
    return fields | {"sliding_window": None}


def qwen3_next(metadata: Metadata) -> dict[str, Any]:
    """Gated delta nets (https://arxiv.org/abs/2412.06464) with full attention in every few layers."""
    count = metadata.need("block_count") - metadata.get("nextn_predict_layers", 0)
    recurrent = metadata.get("attention.recurrent_layers")
    if recurrent is None:
        interval = metadata.get("full_attention_interval", 4)
        recurrent = [(layer + 1) % interval != 0 for layer in range(count)]
    heads = metadata.need("ssm.time_step_rank")
    return headed(metadata) | {
        "num_hidden_layers": count,
        "layer_types": ["linear_attention" if flag else "full_attention" for flag in recurrent[:count]],
        "linear_num_value_heads": heads,
        "linear_value_head_dim": metadata.need("ssm.inner_size") // heads,
    }


def gemma4(metadata: Metadata) -> dict[str, Any]:
    """Layers with full attention have larger heads and rotate a part of them; some files share keys and values."""
    types = layer_types(metadata, 6)
    full = rope_parameters(metadata, head_dim(metadata))
    frequencies = full.get("long_factor", [1.0])
    rotated = sum(1 for factor in frequencies if factor == 1.0) / len(frequencies)
    widths = metadata.need("feed_forward_length")
    fields = {
        "head_dim": metadata.get("attention.key_length_swa", head_dim(metadata)),
        "global_head_dim": head_dim(metadata),
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": types,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": full["rope_theta"],
                "partial_rotary_factor": rotated,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base_swa", 10000.0)},
        },
        "intermediate_size": min(widths) if isinstance(widths, list) else widths,
        "use_double_wide_mlp": isinstance(widths, list) and max(widths) > min(widths),
        "enable_moe_block": "expert_count" in metadata,
        "attention_k_eq_v": any(
            f"blk.{layer}.attn_k.weight" in metadata.tensors and f"blk.{layer}.attn_v.weight" not in metadata.tensors
            for layer in range(len(types))
        ),
    }
    heads = metadata.need("attention.head_count_kv")
    if isinstance(heads, list):
        sliding, everything = types.index("sliding_attention"), types.index("full_attention")
        fields |= {"num_key_value_heads": heads[sliding], "num_global_key_value_heads": heads[everything]}
    if "per_layer_token_embd.weight" in metadata.tensors:
        fields["vocab_size_per_layer_input"] = metadata.shape("per_layer_token_embd.weight")[0]
    return fields


def falcon_h1(metadata: Metadata) -> dict[str, Any]:
    """The converter folds the model's multipliers into the weights, so all are 1 here."""
    heads, inner = metadata.need("ssm.time_step_rank"), metadata.need("ssm.inner_size")
    scalars = ("attention_in", "attention_out", "embedding", "key", "lm_head", "ssm_in", "ssm_out")
    return headed(metadata) | {
        "mamba_d_ssm": inner,
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_rms_norm": "blk.0.ssm_norm.weight" in metadata.tensors,
        "mamba_norm_before_gate": False,
        **{f"{name}_multiplier": 1.0 for name in scalars},
        "mlp_multipliers": [1.0, 1.0],
        "ssm_multipliers": [1.0] * 5,
    }


def minimax_m2(metadata: Metadata) -> dict[str, Any]:
    return headed(metadata) | {"rotary_dim": metadata.need("rope.dimension_count")}


def gemma3n(metadata: Metadata) -> dict[str, Any]:
    """``activation_sparsity_scale`` is the normal quantile of the sparsity that the configuration states."""
    scales = metadata.need("activation_sparsity_scale")
    sparsity = [0.0 if scale == -math.inf else round(0.5 * (1.0 + math.erf(scale / math.sqrt(2.0))), 4) for scale in scales]
    return gemma(metadata) | {
        "layer_types": layer_types(metadata, 5),
        "rope_parameters": _two_ropes(metadata, local_theta=10000.0),
        "activation_sparsity_pattern": sparsity,
        "vocab_size_per_layer_input": metadata.shape("per_layer_token_embd.weight")[0],
        "laurel_rank": metadata.shape("blk.0.laurel_l.weight")[0],
    }

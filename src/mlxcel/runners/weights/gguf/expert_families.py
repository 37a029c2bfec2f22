"""Mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping

from mlxcel.runners.weights import combine
from mlxcel.runners.weights.gguf import config, orders
from mlxcel.runners.weights.gguf.family import Family
from mlxcel.runners.weights.gguf.shared_names import (
    EXPERT_FIELDS,
    GRANITE,
    GRANITE_MOE_MERGES,
    GRANITE_MOE_NAMES,
    PER_LAYER_INPUT_NAMES,
    QWEN_SHARED_EXPERT,
    SANDWICH_NORMS,
)

_ROUTED_EXPERTS = {
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
}
_LOCAL_EXPERTS = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
_MIXTRAL_NAMES = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
    "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
    "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
}
_GEMMA4_NAMES = {
    "layer_output_scale.weight": "layer_scalar",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_down_exps.weight": "experts.down_proj",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
}
MIXTRAL = Family("mixtral", fields=_LOCAL_EXPERTS, derived=config.headed, names=_MIXTRAL_NAMES, orders=orders.rotary_pairs)

EXPERT_FAMILIES: Mapping[str, Family] = {
    "qwen2moe": Family(
        "qwen2_moe",
        fields=EXPERT_FIELDS | {"shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
        names=QWEN_SHARED_EXPERT,
    ),
    "qwen3moe": Family("qwen3_moe", fields=EXPERT_FIELDS, fixed={"norm_topk_prob": True}, derived=config.headed),
    "olmoe": Family("olmoe", fields={"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}),
    "glm4moe": Family(
        "glm4_moe",
        fields=_ROUTED_EXPERTS,
        derived=config.glm4_moe,
        names={"post_attention_norm": "post_attention_layernorm"},
    ),
    "granitemoe": Family(
        "granitemoe",
        fields=GRANITE | _LOCAL_EXPERTS,
        derived=config.granite,
        names=GRANITE_MOE_NAMES,
        merges=GRANITE_MOE_MERGES,
        orders=orders.rotary_pairs,
    ),
    "gpt-oss": Family(
        "gpt_oss",
        fields=_LOCAL_EXPERTS | {"sliding_window": "attention.sliding_window"},
        fixed={"attention_bias": True},
        derived=config.gpt_oss,
        names={
            "post_attention_norm": "post_attention_layernorm",
            "attn_sinks.weight": "self_attn.sinks",
            "ffn_gate_inp": "mlp.router",
            "ffn_down_exps.weight": "mlp.experts.down_proj",
            "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
        },
        merges={
            "mlp.experts.gate_up_proj": (("ffn_gate_exps.weight", "ffn_up_exps.weight"), combine.interleaved_columns),
            "mlp.experts.gate_up_proj_bias": (("ffn_gate_exps.bias", "ffn_up_exps.bias"), combine.interleaved_rows),
        },
        changes={"ffn_down_exps.weight": combine.transposed},
    ),
    "deepseek2": Family(
        "deepseek_v2",
        fields=_ROUTED_EXPERTS
        | {"kv_lora_rank": "attention.kv_lora_rank", "first_k_dense_replace": "leading_dense_block_count"},
        derived=config.deepseek2,
        names={
            "attn_q_a": "self_attn.q_a_proj",
            "attn_q_a_norm": "self_attn.q_a_layernorm",
            "attn_q_b": "self_attn.q_b_proj",
            "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
            "attn_kv_a_norm": "self_attn.kv_a_layernorm",
            "attn_kv_b": "self_attn.kv_b_proj",
        },
        merges={"self_attn.kv_b_proj.weight": (("attn_k_b.weight", "attn_v_b.weight"), combine.latent_kv)},
    ),
    "ernie4_5-moe": Family(
        "ernie4_5_moe",
        fields={
            "moe_num_experts": "expert_count",
            "moe_k": "expert_used_count",
            "moe_num_shared_experts": "expert_shared_count",
            "moe_intermediate_size": "expert_feed_forward_length",
        },
        derived=config.ernie_moe,
        names={"exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"},
    ),
    "dots1": Family(
        "dots1",
        fields=_ROUTED_EXPERTS | {"first_k_dense_replace": "leading_dense_block_count"},
        derived=config.headed,
    ),
    "minimax-m2": Family(
        "minimax_m2",
        fields=_LOCAL_EXPERTS,
        derived=config.minimax_m2,
        names=_MIXTRAL_NAMES | {"exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias"},
    ),
    "llama4": Family(
        "llama4_text",
        fields=_LOCAL_EXPERTS
        | {"intermediate_size": "expert_feed_forward_length", "intermediate_size_mlp": "feed_forward_length"},
        derived=config.llama4,
        names={
            "ffn_gate": "feed_forward.gate_proj",
            "ffn_up": "feed_forward.up_proj",
            "ffn_down": "feed_forward.down_proj",
            "ffn_gate_inp": "feed_forward.router",
            "ffn_gate_shexp": "feed_forward.shared_expert.gate_proj",
            "ffn_up_shexp": "feed_forward.shared_expert.up_proj",
            "ffn_down_shexp": "feed_forward.shared_expert.down_proj",
            "ffn_down_exps.weight": "feed_forward.experts.down_proj",
        },
        merges={
            "feed_forward.experts.gate_up_proj": (
                ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
                combine.stacked_columns,
            ),
        },
        changes={"ffn_down_exps.weight": combine.transposed},
    ),
    "gemma4": Family(
        "gemma4_text",
        fields={
            "sliding_window": "attention.sliding_window",
            "final_logit_softcapping": "final_logit_softcapping",
            "hidden_size_per_layer_input": "embedding_length_per_layer_input",
            "num_kv_shared_layers": "attention.shared_kv_layers",
            "num_experts": "expert_count",
            "top_k_experts": "expert_used_count",
            "moe_intermediate_size": "expert_feed_forward_length",
        },
        derived=config.gemma4,
        names=SANDWICH_NORMS | PER_LAYER_INPUT_NAMES | _GEMMA4_NAMES,
        merges={"experts.gate_up_proj": (("ffn_gate_exps.weight", "ffn_up_exps.weight"), combine.stacked_rows)},
    ),
}

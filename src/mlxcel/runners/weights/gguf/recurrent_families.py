"""State-space models, gated delta nets, short convolutions, and hybrids of them with attention."""

from __future__ import annotations

from collections.abc import Mapping

from mlxcel.runners.weights import combine
from mlxcel.runners.weights.combine import Combine
from mlxcel.runners.weights.gguf import config, orders
from mlxcel.runners.weights.gguf.family import Family
from mlxcel.runners.weights.gguf.shared_names import (
    EXPERT_FIELDS,
    GRANITE,
    GRANITE_MOE_MERGES,
    GRANITE_MOE_NAMES,
    QWEN_SHARED_EXPERT,
)

_LFM2_NAMES = {
    "token_embd_norm": "model.embedding_norm",
    "attn_norm": "operator_norm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_down": "feed_forward.w2",
    "ffn_up": "feed_forward.w3",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
}
_DELTA_NET = {
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
}
_DELTA_NET_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ssm_a": "linear_attn.A_log",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_DELTA_NET_CHANGES: dict[str, Combine] = {"ssm_conv1d.weight": combine.depthwise, "ssm_a": combine.log_decay}
_QWEN35_NAMES = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
}
_STATE_SPACE_NAMES = {
    "ssm_a": "A_log",
    "ssm_d": "D",
    "ssm_conv1d": "conv1d",
    "ssm_in": "in_proj",
    "ssm_out": "out_proj",
    "ssm_x": "x_proj",
    "ssm_dt": "dt_proj",
}
_MAMBA1_CHANGES: Mapping[str, Combine] = {"ssm_conv1d.weight": combine.depthwise, "ssm_a": combine.log_decay}
_MAMBA2_CHANGES: Mapping[str, Combine] = {
    "ssm_conv1d.weight": combine.depthwise,
    "ssm_a": combine.flat_log_decay,
    "ssm_d": combine.flattened,
    "ssm_norm.weight": combine.flattened,
}
_MAMBA_FIELDS: dict[str, str | None] = {
    "num_attention_heads": None,
    "num_key_value_heads": None,
    "max_position_embeddings": None,
    "rms_norm_eps": None,
    "intermediate_size": None,
    "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
    "state_size": "ssm.state_size",
    "conv_kernel": "ssm.conv_kernel",
}
_BACKBONE = {"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "attn_norm": "norm"}


def _inside(module: str, names: Mapping[str, str]) -> dict[str, str]:
    return {gguf: f"{module}.{name}" for gguf, name in names.items()}


RECURRENT_FAMILIES: Mapping[str, Family] = {
    "qwen3next": Family(
        "qwen3_next",
        fields=EXPERT_FIELDS | _DELTA_NET | {"shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
        fixed={"norm_topk_prob": True},
        derived=config.qwen3_next,
        names=_DELTA_NET_NAMES | QWEN_SHARED_EXPERT | {"ssm_ba": "linear_attn.in_proj_ba"},
        merges={"linear_attn.in_proj_qkvz.weight": (("attn_qkv.weight", "attn_gate.weight"), None)},
        changes=_DELTA_NET_CHANGES,
        orders=orders.delta_net_groups,
        shifted_norms=True,
    ),
    "qwen35": Family(
        "qwen3_5_text",
        fields=_DELTA_NET,
        derived=config.qwen3_next,
        names=_DELTA_NET_NAMES | _QWEN35_NAMES,
        changes=_DELTA_NET_CHANGES,
        orders=orders.delta_net_heads,
        column_orders=orders.delta_net_columns,
        shifted_norms=True,
    ),
    "qwen35moe": Family(
        "qwen3_5_moe_text",
        fields=EXPERT_FIELDS | _DELTA_NET | {"shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
        derived=config.qwen3_next,
        names=_DELTA_NET_NAMES | _QWEN35_NAMES | QWEN_SHARED_EXPERT,
        changes=_DELTA_NET_CHANGES,
        orders=orders.delta_net_heads,
        column_orders=orders.delta_net_columns,
        shifted_norms=True,
    ),
    "lfm2": Family(
        "lfm2",
        fields={"rms_norm_eps": None, "norm_eps": "attention.layer_norm_rms_epsilon", "conv_L_cache": "shortconv.l_cache"},
        derived=config.lfm2,
        names=_LFM2_NAMES,
        changes={"shortconv.conv.weight": combine.depthwise},
    ),
    "lfm2moe": Family(
        "lfm2_moe",
        fields=EXPERT_FIELDS
        | {
            "rms_norm_eps": None,
            "norm_eps": "attention.layer_norm_rms_epsilon",
            "conv_L_cache": "shortconv.l_cache",
            "num_dense_layers": "leading_dense_block_count",
        },
        derived=config.lfm2_moe,
        names=_LFM2_NAMES
        | {
            "exp_probs_b.bias": "feed_forward.expert_bias",
            "ffn_gate_inp": "feed_forward.gate",
            "ffn_gate_exps": "feed_forward.experts.{expert}.w1",
            "ffn_down_exps": "feed_forward.experts.{expert}.w2",
            "ffn_up_exps": "feed_forward.experts.{expert}.w3",
        },
        changes={"shortconv.conv.weight": combine.depthwise},
    ),
    "mamba": Family(
        "mamba",
        fields=_MAMBA_FIELDS | {"intermediate_size": "ssm.inner_size", "time_step_rank": "ssm.time_step_rank"},
        derived=config.mamba,
        names=_BACKBONE | _inside("mixer", _STATE_SPACE_NAMES),
        changes=_MAMBA1_CHANGES,
        layer="backbone.layers.{layer}.",
    ),
    "mamba2": Family(
        "mamba2",
        fields=_MAMBA_FIELDS | {"n_groups": "ssm.group_count"},
        derived=config.mamba2,
        names=_BACKBONE | _inside("mixer", _STATE_SPACE_NAMES | {"ssm_dt.bias": "dt_bias", "ssm_norm": "norm"}),
        changes=_MAMBA2_CHANGES,
        layer="backbone.layers.{layer}.",
    ),
    "jamba": Family(
        "jamba",
        fields={
            "num_experts": "expert_count",
            "num_experts_per_tok": "expert_used_count",
            "mamba_d_conv": "ssm.conv_kernel",
            "mamba_d_state": "ssm.state_size",
            "mamba_dt_rank": "ssm.time_step_rank",
        },
        derived=config.jamba,
        names={
            "output_norm": "model.final_layernorm",
            "ffn_norm": "pre_ff_layernorm",
            "ffn_gate": "feed_forward.gate_proj",
            "ffn_up": "feed_forward.up_proj",
            "ffn_down": "feed_forward.down_proj",
            "ffn_gate_inp": "feed_forward.router",
            "ffn_gate_exps": "feed_forward.experts.{expert}.gate_proj",
            "ffn_up_exps": "feed_forward.experts.{expert}.up_proj",
            "ffn_down_exps": "feed_forward.experts.{expert}.down_proj",
            "ssm_b_norm": "mamba.b_layernorm",
            "ssm_c_norm": "mamba.c_layernorm",
            "ssm_dt_norm": "mamba.dt_layernorm",
        }
        | _inside("mamba", _STATE_SPACE_NAMES),
        changes=_MAMBA1_CHANGES,
    ),
    "falcon-h1": Family(
        "falcon_h1",
        fields={
            "mamba_d_conv": "ssm.conv_kernel",
            "mamba_d_state": "ssm.state_size",
            "mamba_n_groups": "ssm.group_count",
        },
        derived=config.falcon_h1,
        names={
            "output_norm": "model.final_layernorm",
            "ffn_norm": "pre_ff_layernorm.weight",
            "ffn_gate": "feed_forward.gate_proj",
            "ffn_up": "feed_forward.up_proj",
            "ffn_down": "feed_forward.down_proj",
        }
        | _inside("mamba", _STATE_SPACE_NAMES | {"ssm_dt.bias": "dt_bias", "ssm_norm": "norm"}),
        changes=_MAMBA2_CHANGES,
    ),
    "granitehybrid": Family(
        "granitemoehybrid",
        fields=GRANITE
        | {
            "shared_intermediate_size": "expert_shared_feed_forward_length",
            "mamba_d_conv": "ssm.conv_kernel",
            "mamba_d_state": "ssm.state_size",
            "mamba_n_groups": "ssm.group_count",
        },
        derived=config.granite_hybrid,
        names=GRANITE_MOE_NAMES
        | _inside("mamba", _STATE_SPACE_NAMES)
        | {"ssm_dt.bias": "mamba.dt_bias", "ssm_norm": "mamba.norm", "ffn_down_shexp": "shared_mlp.output_linear"},
        merges=GRANITE_MOE_MERGES
        | {
            "shared_mlp.input_linear.weight": (("ffn_gate_shexp.weight", "ffn_up_shexp.weight"), combine.stacked_rows),
        },
        changes=_MAMBA2_CHANGES,
        orders=orders.rotary_pairs,
    ),
}

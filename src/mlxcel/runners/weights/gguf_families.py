"""One entry per GGUF architecture: its Hugging Face model type, configuration fields and tensor names.

The facts are those of llama.cpp's converter, whose key and tensor names every entry is written against.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlxcel.runners.weights import gguf_config as config
from mlxcel.runners.weights import gguf_recipes as recipes
from mlxcel.runners.weights.gguf_family import Family, Merge
from mlxcel.runners.weights.gguf_metadata import Metadata
from mlxcel.runners.weights.gguf_recipes import Combine

_LAYER_NORM = {"rms_norm_eps": None, "layer_norm_eps": "attention.layer_norm_epsilon"}
_EXPERTS = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
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
_GRANITE = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
_SANDWICH_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_POST_NORMS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_MIXTRAL_NAMES = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
    "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
    "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
}
_QWEN_SHARED_EXPERT = {
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
_GRANITE_MOE_NAMES = {"ffn_gate_inp": "block_sparse_moe.router.layer", "ffn_down_exps": "block_sparse_moe.output_linear"}
_GRANITE_MOE_MERGES: dict[str, Merge] = {
    "block_sparse_moe.input_linear.weight": (("ffn_gate_exps.weight", "ffn_up_exps.weight"), recipes.stacked_rows),
}
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
_STATE_SPACE_NAMES = {
    "ssm_a": "A_log",
    "ssm_d": "D",
    "ssm_conv1d": "conv1d",
    "ssm_in": "in_proj",
    "ssm_out": "out_proj",
    "ssm_x": "x_proj",
    "ssm_dt": "dt_proj",
}


def _inside(module: str, names: Mapping[str, str]) -> dict[str, str]:
    return {gguf: f"{module}.{name}" for gguf, name in names.items()}


_MAMBA1_CHANGES: Mapping[str, Combine] = {"ssm_conv1d.weight": recipes.depthwise, "ssm_a": recipes.log_decay}
_MAMBA2_CHANGES: Mapping[str, Combine] = {
    "ssm_conv1d.weight": recipes.depthwise,
    "ssm_a": recipes.flat_log_decay,
    "ssm_d": recipes.flattened,
    "ssm_norm.weight": recipes.flattened,
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
_SOFTCAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
_GEMMA3N_NAMES = {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "altup_proj": "model.altup_projections.{expert}",
    "altup_unembd_proj": "model.altup_unembed_projections.{expert}",
    "altup_correct_scale.weight": "altup.correct_output_scale",
    "altup_correct_coef": "altup.correction_coefs",
    "altup_predict_coef": "altup.prediction_coefs",
    "altup_router": "altup.modality_router",
    "altup_router_norm": "altup.router_norm",
    "laurel_l": "laurel.linear_left",
    "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}

_LLAMA = Family("llama", derived=config.llama, permuted=True)
_MIXTRAL = Family("mixtral", fields=_LOCAL_EXPERTS, derived=config.headed, names=_MIXTRAL_NAMES, permuted=True)
_MISTRAL = Family("mistral", fields={"sliding_window": "attention.sliding_window"}, derived=config.headed, permuted=True)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "qwen2": Family("qwen2"),
    "qwen2moe": Family(
        "qwen2_moe",
        fields=_EXPERTS | {"shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
        names=_QWEN_SHARED_EXPERT,
    ),
    "qwen3": Family("qwen3", derived=config.headed),
    "qwen3moe": Family("qwen3_moe", fields=_EXPERTS, fixed={"norm_topk_prob": True}, derived=config.headed),
    "gemma": Family("gemma", derived=config.gemma, shifted_norms=True),
    "gemma2": Family(
        "gemma2",
        fields=_SOFTCAPS | {"sliding_window": "attention.sliding_window"},
        derived=config.gemma2,
        names=_SANDWICH_NORMS,
        shifted_norms=True,
    ),
    "gemma3": Family(
        "gemma3_text",
        fields={"sliding_window": "attention.sliding_window", "final_logit_softcapping": "final_logit_softcapping"},
        derived=config.gemma3,
        names=_SANDWICH_NORMS,
        shifted_norms=True,
    ),
    "gemma3n": Family(
        "gemma3n_text",
        fields={
            "sliding_window": "attention.sliding_window",
            "final_logit_softcapping": "final_logit_softcapping",
            "altup_active_idx": "altup.active_idx",
            "altup_num_inputs": "altup.num_inputs",
            "hidden_size_per_layer_input": "embedding_length_per_layer_input",
            "num_kv_shared_layers": "attention.shared_kv_layers",
        },
        derived=config.gemma3n,
        names=_SANDWICH_NORMS | _GEMMA3N_NAMES,
    ),
    "phi2": Family(
        "phi",
        fields=_LAYER_NORM,
        fixed={"hidden_act": "gelu_new"},
        names={
            "output_norm": "model.final_layernorm",
            "attn_output": "self_attn.dense",
            "ffn_up": "mlp.fc1",
            "ffn_down": "mlp.fc2",
        },
    ),
    "phi3": Family("phi3", derived=config.phi3, names={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}),
    "stablelm": Family("stablelm", fields=_LAYER_NORM, derived=config.stablelm),
    "starcoder2": Family(
        "starcoder2",
        fields={"rms_norm_eps": None, "norm_epsilon": "attention.layer_norm_epsilon"},
        names={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    ),
    "olmo": Family("olmo", fields={"rms_norm_eps": None, "clip_qkv": "attention.clamp_kqv"}, permuted=True),
    "olmo2": Family("olmo2", derived=config.olmo2, names=_POST_NORMS),
    "olmoe": Family("olmoe", fields={"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}),
    "command-r": Family("cohere", fields=_LAYER_NORM | {"logit_scale": "logit_scale"}, derived=config.cohere),
    "cohere2": Family("cohere2", fields=_LAYER_NORM | {"logit_scale": "logit_scale"}, derived=config.cohere2),
    "glm4": Family(
        "glm4",
        fixed={"attention_bias": True},
        derived=config.headed,
        names={
            "ffn_up": "mlp.gate_up_proj",
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
        },
    ),
    "glm4moe": Family(
        "glm4_moe",
        fields=_ROUTED_EXPERTS,
        derived=config.glm4_moe,
        names={"post_attention_norm": "post_attention_layernorm"},
    ),
    "granite": Family("granite", fields=_GRANITE, derived=config.granite, permuted=True),
    "granitemoe": Family(
        "granitemoe",
        fields=_GRANITE | _LOCAL_EXPERTS,
        derived=config.granite,
        names=_GRANITE_MOE_NAMES,
        merges=_GRANITE_MOE_MERGES,
        permuted=True,
    ),
    "granitehybrid": Family(
        "granitemoehybrid",
        fields=_GRANITE
        | {
            "shared_intermediate_size": "expert_shared_feed_forward_length",
            "mamba_d_conv": "ssm.conv_kernel",
            "mamba_d_state": "ssm.state_size",
            "mamba_n_groups": "ssm.group_count",
        },
        derived=config.granite_hybrid,
        names=_GRANITE_MOE_NAMES
        | _inside("mamba", _STATE_SPACE_NAMES)
        | {"ssm_dt.bias": "mamba.dt_bias", "ssm_norm": "mamba.norm", "ffn_down_shexp": "shared_mlp.output_linear"},
        merges=_GRANITE_MOE_MERGES
        | {
            "shared_mlp.input_linear.weight": (("ffn_gate_shexp.weight", "ffn_up_shexp.weight"), recipes.stacked_rows),
        },
        changes=_MAMBA2_CHANGES,
        permuted=True,
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
            "mlp.experts.gate_up_proj": (("ffn_gate_exps.weight", "ffn_up_exps.weight"), recipes.interleaved_columns),
            "mlp.experts.gate_up_proj_bias": (("ffn_gate_exps.bias", "ffn_up_exps.bias"), recipes.interleaved_rows),
        },
        changes={"ffn_down_exps.weight": recipes.transposed},
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
        merges={"self_attn.kv_b_proj.weight": (("attn_k_b.weight", "attn_v_b.weight"), recipes.latent_kv)},
    ),
    "smollm3": Family("smollm3", permuted=True),
    "arcee": Family("arcee", derived=config.headed, permuted=True),
    "ernie4_5": Family("ernie4_5", derived=config.headed),
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
    "hunyuan-dense": Family(
        "hunyuan_v1_dense",
        derived=config.headed,
        names={"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"},
    ),
    "seed_oss": Family("seed_oss", derived=config.headed, names={"post_attention_norm": "post_attention_layernorm"}),
    "exaone4": Family("exaone4", derived=config.windowed, names=_POST_NORMS),
    "nemotron": Family(
        "nemotron",
        fields={"rms_norm_eps": None, "norm_eps": "attention.layer_norm_epsilon"},
        fixed={"hidden_act": "relu2"},
        derived=config.headed,
        shifted_norms=True,
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
                recipes.stacked_columns,
            ),
        },
        changes={"ffn_down_exps.weight": recipes.transposed},
    ),
    "lfm2": Family(
        "lfm2",
        fields={"rms_norm_eps": None, "norm_eps": "attention.layer_norm_rms_epsilon", "conv_L_cache": "shortconv.l_cache"},
        derived=config.lfm2,
        names=_LFM2_NAMES,
        changes={"shortconv.conv.weight": recipes.depthwise},
    ),
    "lfm2moe": Family(
        "lfm2_moe",
        fields=_EXPERTS
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
        changes={"shortconv.conv.weight": recipes.depthwise},
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
    "gpt2": Family(
        "gpt2",
        fields={
            "hidden_size": None,
            "num_hidden_layers": None,
            "intermediate_size": None,
            "num_attention_heads": None,
            "num_key_value_heads": None,
            "max_position_embeddings": None,
            "rms_norm_eps": None,
            "n_embd": "embedding_length",
            "n_layer": "block_count",
            "n_inner": "feed_forward_length",
            "n_head": "attention.head_count",
            "layer_norm_epsilon": "attention.layer_norm_epsilon",
        },
        derived=config.gpt2,
        names={
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        changes={
            name: recipes.transposed
            for name in ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")
        },
        layer="transformer.h.{layer}.",
    ),
    "gptneox": Family(
        "gpt_neox",
        fields=_LAYER_NORM | {"num_key_value_heads": None, "use_parallel_residual": "use_parallel_residual"},
        names={
            "token_embd": "gpt_neox.embed_in",
            "output_norm": "gpt_neox.final_layer_norm",
            "output": "embed_out",
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
        layer="gpt_neox.layers.{layer}.",
        fused_order=True,
    ),
    "bloom": Family(
        "bloom",
        fields={
            "num_hidden_layers": None,
            "intermediate_size": None,
            "num_attention_heads": None,
            "num_key_value_heads": None,
            "max_position_embeddings": None,
            "rms_norm_eps": None,
            "n_layer": "block_count",
            "n_head": "attention.head_count",
            "layer_norm_epsilon": "attention.layer_norm_epsilon",
        },
        derived=config.nothing,
        names={
            "token_embd": "transformer.word_embeddings",
            "token_embd_norm": "transformer.word_embeddings_layernorm",
            "output_norm": "transformer.ln_f",
            "attn_qkv": "self_attention.query_key_value",
            "attn_output": "self_attention.dense",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
        layer="transformer.h.{layer}.",
        fused_order=True,
    ),
    "falcon": Family(
        "falcon",
        fields={
            "intermediate_size": None,
            "num_key_value_heads": None,
            "rms_norm_eps": None,
            "num_kv_heads": "attention.head_count_kv",
            "layer_norm_epsilon": "attention.layer_norm_epsilon",
        },
        derived=config.falcon,
        names={
            "token_embd": "transformer.word_embeddings",
            "output_norm": "transformer.ln_f",
            "attn_qkv": "self_attention.query_key_value",
            "attn_output": "self_attention.dense",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
        layer="transformer.h.{layer}.",
        fused_order=True,
    ),
}


def family_of(metadata: Metadata) -> Family | None:
    """The entry for a file; None when its architecture is not supported. llama.cpp calls Mistral and Mixtral llama, too."""
    if metadata.architecture == "llama":
        if metadata.get("expert_count"):
            return _MIXTRAL
        if metadata.get("attention.sliding_window"):
            return _MISTRAL
    return FAMILIES.get(metadata.architecture)

"""Dense transformers of today: Llama, Qwen, Gemma, Phi, Granite and their kin."""

from __future__ import annotations

from collections.abc import Mapping

from mlxcel.runners.weights.gguf import config, orders
from mlxcel.runners.weights.gguf.family import Family
from mlxcel.runners.weights.gguf.shared_names import GRANITE, LAYER_NORM, PER_LAYER_INPUT_NAMES, SANDWICH_NORMS

_POST_NORMS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_SOFTCAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
_GEMMA3N_NAMES = {
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
}
_LLAMA = Family("llama", derived=config.llama, orders=orders.rotary_pairs)
MISTRAL = Family(
    "mistral", fields={"sliding_window": "attention.sliding_window"}, derived=config.headed, orders=orders.rotary_pairs
)

DENSE_FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3", derived=config.headed),
    "mistral3": Family("ministral3", derived=config.mistral3, orders=orders.rotary_pairs),
    "gemma": Family("gemma", derived=config.gemma, shifted_norms=True),
    "gemma2": Family(
        "gemma2",
        fields=_SOFTCAPS | {"sliding_window": "attention.sliding_window"},
        derived=config.gemma2,
        names=SANDWICH_NORMS,
        shifted_norms=True,
    ),
    "gemma3": Family(
        "gemma3_text",
        fields={"sliding_window": "attention.sliding_window", "final_logit_softcapping": "final_logit_softcapping"},
        derived=config.gemma3,
        names=SANDWICH_NORMS,
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
        names=SANDWICH_NORMS | PER_LAYER_INPUT_NAMES | _GEMMA3N_NAMES,
    ),
    "phi3": Family("phi3", derived=config.phi3, names={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}),
    "olmo2": Family("olmo2", derived=config.olmo2, names=_POST_NORMS),
    "cohere2": Family("cohere2", fields=LAYER_NORM | {"logit_scale": "logit_scale"}, derived=config.windowed),
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
    "granite": Family("granite", fields=GRANITE, derived=config.granite, orders=orders.rotary_pairs),
    "smollm3": Family("smollm3", orders=orders.rotary_pairs),
    "arcee": Family("arcee", derived=config.headed, orders=orders.rotary_pairs),
    "ernie4_5": Family("ernie4_5", derived=config.headed),
    "hunyuan-dense": Family(
        "hunyuan_v1_dense",
        derived=config.headed,
        names={"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"},
    ),
    "seed_oss": Family("seed_oss", derived=config.headed, names={"post_attention_norm": "post_attention_layernorm"}),
    "exaone4": Family("exaone4", derived=config.windowed, names=_POST_NORMS),
}

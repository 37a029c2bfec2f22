"""Architectures with layer norms, fused projections or parallel residuals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlxcel.runners.weights import combine
from mlxcel.runners.weights.gguf import config, orders
from mlxcel.runners.weights.gguf.family import Family
from mlxcel.runners.weights.gguf.shared_names import LAYER_NORM

_FALCON_NAMES = {
    "token_embd": "transformer.word_embeddings",
    "output_norm": "transformer.ln_f",
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
_FALCON = Family(
    "falcon",
    fields={
        "intermediate_size": None,
        "num_key_value_heads": None,
        "rms_norm_eps": None,
        "num_kv_heads": "attention.head_count_kv",
        "layer_norm_epsilon": "attention.layer_norm_epsilon",
        "ffn_hidden_size": "feed_forward_length",
    },
    derived=config.falcon,
    names=_FALCON_NAMES,
    layer="transformer.h.{layer}.",
    orders=orders.fused_by_head,
)
FALCON_40B = replace(_FALCON, names=_FALCON_NAMES | {"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"})

OLDER_FAMILIES: Mapping[str, Family] = {
    "phi2": Family(
        "phi",
        fields=LAYER_NORM,
        fixed={"hidden_act": "gelu_new"},
        names={
            "output_norm": "model.final_layernorm",
            "attn_output": "self_attn.dense",
            "ffn_up": "mlp.fc1",
            "ffn_down": "mlp.fc2",
        },
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
            name: combine.transposed
            for name in ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")
        },
        layer="transformer.h.{layer}.",
    ),
    "gptneox": Family(
        "gpt_neox",
        fields=LAYER_NORM | {"num_key_value_heads": None, "use_parallel_residual": "use_parallel_residual"},
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
        orders=orders.fused_by_head,
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
        orders=orders.fused_by_head,
    ),
    "falcon": _FALCON,
    "starcoder2": Family(
        "starcoder2",
        fields={"rms_norm_eps": None, "norm_epsilon": "attention.layer_norm_epsilon"},
        names={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    ),
    "stablelm": Family("stablelm", fields=LAYER_NORM, derived=config.stablelm),
    "nemotron": Family(
        "nemotron",
        fields={"rms_norm_eps": None, "norm_eps": "attention.layer_norm_epsilon"},
        fixed={"hidden_act": "relu2"},
        derived=config.headed,
        shifted_norms=True,
    ),
    "command-r": Family("cohere", fields=LAYER_NORM | {"logit_scale": "logit_scale"}, derived=config.cohere),
    "olmo": Family("olmo", fields={"rms_norm_eps": None, "clip_qkv": "attention.clamp_kqv"}, orders=orders.rotary_pairs),
}

"""Descriptions read from configs: what is native, what is not, and the fields that differ between families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from mlxcel.runners.generate.decoder.spec import DecoderSpec, native_families, spec_from_config
from mlxcel.runners.generate.window import UNBOUNDED_WINDOW_TOKENS, declared_window_tokens
from mlxcel.testing.tiny_models import tiny_config, write_tiny_checkpoint

BARE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "vocab_size": 300,
}


def spec_of(family: str, **fields: Any) -> DecoderSpec:
    spec = spec_from_config(BARE | {"model_type": family} | fields)
    assert spec is not None
    return spec


@pytest.mark.parametrize("family", native_families())
def test_names_are_those_of_the_checkpoint(family: str, tmp_path: Path) -> None:
    config = tiny_config(family)
    folder = write_tiny_checkpoint(family, tmp_path / "model")
    spec = spec_from_config(config.to_dict())
    assert spec is not None
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert set(spec.tensor_names()) == set(file.keys())


@pytest.mark.parametrize("family", native_families())
def test_defaults_of_absent_fields_are_those_of_transformers(family: str) -> None:
    sparse = spec_of(family)
    config = tiny_config(family).__class__(**BARE)
    full = spec_from_config(config.to_dict())
    assert full is not None
    for name in ("head_dim", "kv_head_count", "context_tokens", "windows", "rope_layers", "tied", "qkv_bias", "norm_eps"):
        assert getattr(sparse, name) == getattr(full, name), name
    assert sparse.rope.inverse_frequencies.tolist() == full.rope.inverse_frequencies.tolist()


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "gemma3_text"},
        {"model_type": "llama", "hidden_act": "mish"},
        {"model_type": "llama", "rope_scaling": {"rope_type": "longrope", "factor": 2.0}},
        {"model_type": "qwen3", "rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
        {},
    ],
    ids=["family", "activation", "scaling", "rope per layer", "no model type"],
)
def test_what_the_block_lacks_is_not_native(fields: dict[str, Any]) -> None:
    assert spec_from_config(BARE | fields) is None


def test_mistral_windows_every_layer_unless_null() -> None:
    assert spec_of("mistral", sliding_window=8).windows == (8, 8, 8)
    assert spec_of("mistral", sliding_window=None).windows == (0, 0, 0)


def test_qwen_windows_need_their_switch_and_start_late() -> None:
    assert spec_of("qwen2", sliding_window=8).windows == (0, 0, 0)
    assert spec_of("qwen2", sliding_window=8, use_sliding_window=True, max_window_layers=1).windows == (0, 8, 8)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert spec_of("qwen3", sliding_window=8, use_sliding_window=True, layer_types=kinds).windows == (8, 0, 8)


def test_smollm3_skips_positions_in_every_fourth_layer() -> None:
    assert spec_of("smollm3", num_hidden_layers=5).rope_layers == (True, True, True, False, True)
    assert spec_of("smollm3", no_rope_layers=[0, 1, 1]).rope_layers == (False, True, True)


def test_biases_follow_the_family() -> None:
    llama = spec_of("llama", attention_bias=True, mlp_bias=True)
    assert (llama.qkv_bias, llama.o_bias, llama.mlp_bias) == (True, True, True)
    qwen2 = spec_of("qwen2", attention_bias=True)
    assert (qwen2.qkv_bias, qwen2.o_bias, qwen2.mlp_bias) == (True, False, False)


def test_granite_multipliers() -> None:
    fields = {
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.1,
        "logits_scaling": 8.0,
    }
    spec = spec_of("granite", **fields)
    assert (spec.embedding_multiplier, spec.residual_multiplier, spec.attention_scale) == (12.0, 0.22, 0.1)
    assert spec.logit_multiplier == pytest.approx(0.125)
    assert spec_of("llama", **fields).attention_scale == 0.25


def test_kv_bytes_count_keys_and_values_of_all_layers() -> None:
    assert spec_of("llama", num_key_value_heads=2).kv_bytes_per_token(2) == 2 * 3 * 2 * 16 * 2


@pytest.mark.parametrize(
    ("config", "window"),
    [
        (BARE | {"model_type": "llama", "max_position_embeddings": 100}, 100),
        (
            BARE | {"model_type": "llama", "max_position_embeddings": 100, "rope_scaling": {"type": "linear", "factor": 3}},
            300,
        ),
        ({"model_type": "gpt2", "n_positions": 77}, 77),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "max_position_embeddings": 55}}, 55),
        ({"model_type": "mamba2"}, UNBOUNDED_WINDOW_TOKENS),
    ],
    ids=["plain", "scaled", "gpt2's spelling", "nested", "recurrent"],
)
def test_declared_window(config: dict[str, Any], window: int) -> None:
    assert declared_window_tokens(config) == window

"""The shipped generator of tiny checkpoints: real files that transformers loads, the same for the same seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mlxcel.testing.tiny_models import FAMILIES, causal_families, tiny_config, write_tiny_checkpoint
from mlxcel.testing.tiny_tokenizer import END_OF_TEXT_ID, TURN_END_ID, VOCAB_TOKENS, write_tiny_tokenizer

PARAMETER_LIMIT = 1_000_000


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_next", "deepseek_v3", "gpt_oss", "mamba2", "falcon_h1"])
def test_checkpoint_loads_and_does_not_answer_flatly(family: str, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(family, tmp_path / "model")
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert sum(parameter.numel() for parameter in model.parameters()) < PARAMETER_LIMIT
    with torch.no_grad():
        logits = model.eval()(torch.arange(32)[None]).logits[0]
    assert logits.shape == (32, VOCAB_TOKENS)
    greedy = logits.argmax(-1)
    assert greedy.unique().numel() >= 4
    assert (greedy == torch.arange(32)).float().mean() < 0.5


def test_weights_depend_on_the_seed_alone(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    first = write_tiny_checkpoint("llama", tmp_path / "first", seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    again = write_tiny_checkpoint("llama", tmp_path / "again", seed=1)
    other = write_tiny_checkpoint("llama", tmp_path / "other", seed=2)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, again, other)]
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]


def test_overrides_and_dtype_reach_the_files(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma2", tmp_path, dtype="bfloat16", num_hidden_layers=5, vocab_size=600)
    config = json.loads((folder / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert config["num_hidden_layers"] == len(config["layer_types"]) == 5
    assert set(config["layer_types"]) == {"sliding_attention", "full_attention"}
    assert config["vocab_size"] == 600
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [TURN_END_ID, END_OF_TEXT_ID]


def test_every_named_family_is_known() -> None:
    assert set(FAMILIES) <= set(causal_families())
    for family in FAMILIES:
        assert tiny_config(family).model_type == family
    with pytest.raises(KeyError):
        tiny_config("no_such_family")


@pytest.mark.parametrize("text", ["", "plain words", "Grüße, 世界 🎉\n\ttabs", "<think>\nplan\n</think>", "\x00\x7f\u202e"])
def test_any_text_round_trips(text: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(write_tiny_tokenizer(tmp_path))
    assert len(tokenizer) == VOCAB_TOKENS
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_template_writes_tools_calls_and_results(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(write_tiny_tokenizer(tmp_path))
    rendered = tokenizer.apply_chat_template(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {"at": "sky"}}}]},
            {"role": "tool", "content": "blue"},
        ],
        tools=[{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=False,
    )
    assert rendered.startswith("<|im_start|>system\nBe brief.\n\n")
    assert '"name": "look"' in rendered
    assert (
        '<|im_start|>assistant\n<tool_call>\n{"name": "look", "arguments": {"at": "sky"}}\n</tool_call><|im_end|>\n'
        in rendered
    )
    assert "<|im_start|>user\n<tool_response>\nblue\n</tool_response><|im_end|>\n" in rendered
    assert rendered.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")

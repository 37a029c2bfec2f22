"""Families that run through transformers' modules give the tokens of its own generate, batched or with a cache per row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from mlxcel.core.errors import StartupError
from mlxcel.core.ports import ModelRunner
from mlxcel.runners.generate.build import build_runner
from mlxcel.runners.generate.choice import RunnerChoice
from mlxcel.runners.generate.hf.self_check import Reference
from mlxcel.runners.generate.hf.stateful import StatefulRunner
from mlxcel.runners.generate.options import RopeOverrides, RunnerOptions
from mlxcel.runners.generate.runner import PagedRunner
from mlxcel.runners.weights import open_checkpoint
from mlxcel.testing.row_driver import RowDriver
from mlxcel.testing.tiny_models import write_tiny_checkpoint

NEW_TOKENS = 16
OPTIONS = RunnerOptions(dtype="fp32", max_rows=8, kv_block_count=128, backend="transformers")

BATCHED = (
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "phi",
    "phi3", "olmo2", "cohere2", "glm4", "glm4_moe", "granite", "gpt_oss", "deepseek_v3", "llama4_text", "smollm3",
    "starcoder2", "stablelm", "gpt2", "gpt_neox", "opt", "dbrx",
)  # fmt: skip
STATEFUL = (
    "qwen3_next", "qwen3_5_text", "lfm2", "mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h", "bamba", "rwkv",
    "jamba", "recurrent_gemma", "kimi_linear", "xlstm", "falcon", "mpt", "bloom",
)  # fmt: skip


def prompts(vocab_size: int, lengths: Sequence[int] = (5, 37, 2, 20)) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, vocab_size, (length,), generator=generator).tolist() for length in lengths]


def own_tokens(model: PreTrainedModel, inputs: Sequence[Sequence[int]], new_tokens: int = NEW_TOKENS) -> list[list[int]]:
    model.eval()
    model.generation_config.eos_token_id = None
    settings: dict[str, Any] = {"max_new_tokens": new_tokens, "do_sample": False, "pad_token_id": 0}
    return [model.generate(torch.tensor([ids]), **settings)[0, len(ids) :].tolist() for ids in inputs]


def load(folder: Path, options: RunnerOptions = OPTIONS) -> tuple[ModelRunner, RunnerChoice]:
    runner = build_runner(open_checkpoint(folder), options)
    assert isinstance(runner, PagedRunner | StatefulRunner)
    return runner, runner.choice


@pytest.mark.parametrize("family", BATCHED + STATEFUL)
def test_greedy_tokens_equal_generate(family: str, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(family, tmp_path)
    runner, choice = load(folder)
    assert choice.path == ("transformers" if family in BATCHED else "transformers-stateful"), choice.reason
    inputs = prompts(runner.info.vocab_size)
    expected = own_tokens(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), inputs)
    driver = RowDriver(runner)
    assert [driver.generate([ids], NEW_TOKENS)[0] for ids in inputs] == expected
    assert driver.generate(inputs, NEW_TOKENS) == expected
    assert driver.generate(inputs, NEW_TOKENS, chunk_tokens=7) == expected


def test_chunked_attention_of_llama4_is_kept(tmp_path: Path) -> None:
    """Chunks of 16: a prompt of 37 tokens crosses two borders, which a sliding window would treat otherwise."""
    folder = write_tiny_checkpoint("llama4_text", tmp_path, attention_chunk_size=16)
    runner, _ = load(folder)
    inputs = prompts(runner.info.vocab_size, (37, 30))
    expected = own_tokens(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), inputs)
    assert RowDriver(runner).generate(inputs, NEW_TOKENS, chunk_tokens=10) == expected


def test_families_without_a_native_decoder_come_here_by_themselves(tmp_path: Path) -> None:
    _, choice = load(write_tiny_checkpoint("gemma2", tmp_path), RunnerOptions(dtype="fp32", kv_block_count=16))
    assert choice.path == "transformers"
    assert choice.reason == "gemma2 has no native decoder; batched over paged KV"


def test_latent_attention_keeps_keys_and_values_of_their_own_sizes(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(
        "deepseek_v3", tmp_path, qk_nope_head_dim=16, qk_rope_head_dim=8, head_dim=8, v_head_dim=12
    )
    runner, choice = load(folder)
    assert choice.path == "transformers"
    assert runner.info.bytes_per_token == 2 * 4 * (16 + 8 + 12) * 4
    inputs = prompts(runner.info.vocab_size, (9, 21))
    expected = own_tokens(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), inputs)
    assert RowDriver(runner).generate(inputs, NEW_TOKENS) == expected


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "long_factor": [4.0] * 8,
    "short_factor": [1.0] * 8,
    "original_max_position_embeddings": 32,
}


def test_a_long_stranger_does_not_change_a_rows_rotation(tmp_path: Path) -> None:
    """transformers picks LongRoPE's factors by the longest position of a batch."""
    folder = write_tiny_checkpoint("phi3", tmp_path, rope_parameters=LONGROPE, original_max_position_embeddings=32)
    runner, _ = load(folder)
    short, long = prompts(runner.info.vocab_size, (10, 60))
    driver = RowDriver(runner)
    assert driver.generate([short, long], 8)[0] == driver.generate([short], 8)[0]


def test_longrope_factors_follow_the_window_that_is_served(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("phi3", tmp_path, rope_parameters=LONGROPE, original_max_position_embeddings=32)
    runner, _ = load(folder, RunnerOptions(dtype="fp32", kv_block_count=16, context_tokens=32))
    (ids,) = prompts(runner.info.vocab_size, (20,))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert RowDriver(runner).generate([ids], 10) == own_tokens(model, [ids], 10)


def test_operators_scaling_reaches_transformers(tmp_path: Path) -> None:
    linear = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
    plain = write_tiny_checkpoint("olmo2", tmp_path / "plain", max_position_embeddings=64)
    scaled = write_tiny_checkpoint("olmo2", tmp_path / "scaled", max_position_embeddings=64, rope_parameters=linear)
    runner, _ = load(plain, RunnerOptions(dtype="fp32", max_rows=8, kv_block_count=64, rope=RopeOverrides(scale=2.0)))
    assert runner.info.context_tokens == 128
    inputs = prompts(runner.info.vocab_size)
    model = AutoModelForCausalLM.from_pretrained(scaled, dtype=torch.float32)
    assert RowDriver(runner).generate(inputs, NEW_TOKENS) == own_tokens(model, inputs)


@pytest.mark.parametrize(("family", "path"), [("gemma2", "transformers"), ("lfm2", "transformers-stateful")])
def test_sixteen_bit_models_pass_their_check(family: str, path: str, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(family, tmp_path)
    _, choice = load(folder, RunnerOptions(dtype="bf16", kv_block_count=16))
    assert choice.path == path, choice.reason


def test_a_missing_tensor_is_named_instead_of_made_up(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_tiny_checkpoint("gemma2", tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(StartupError, match=r"lacks 1 tensors, first model\.layers\.1\.mlp\.up_proj\.weight"):
        load(folder)


def test_an_unknown_model_type_is_one_line(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("llama", tmp_path)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"llama"', '"hyperllama"'))
    with pytest.raises(StartupError, match="hyperllama"):
        load(folder)


def test_a_config_that_transformers_itself_cannot_run_is_one_line(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("deepseek_v3", tmp_path, qk_rope_head_dim=8)  # its rotary tables stay 16 wide
    with pytest.raises(StartupError, match="forward pass of deepseek_v3 fails"):
        load(folder)


def test_a_model_that_reads_both_ways_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="xlm does not read from left to right"):
        load(write_tiny_checkpoint("xlm", tmp_path))


def test_code_from_a_checkpoint_never_runs_by_itself(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("llama", tmp_path)
    config = (folder / "config.json").read_text()
    own_code = '"model_type": "homemade", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}'
    (folder / "config.json").write_text(config.replace('"model_type": "llama"', own_code))
    (folder / "own.py").write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    with pytest.raises(StartupError, match="--trust-remote-code"):
        load(folder)
    assert not (folder / "ran").exists()


class TestSelfCheck:
    reference = Reference(((1, 2),), (torch.tensor([[1.0, 0.0], [0.0, 2.0]]),), torch.float32)

    def test_error_is_relative_to_the_logits(self) -> None:
        assert self.reference.errors(0, 1, torch.tensor([[0.0, 1.0]])).tolist() == [0.5]

    def test_exact_arithmetic_allows_no_outlier(self) -> None:
        assert self.reference.accepts(torch.tensor([1e-6, 1e-5]))
        assert not self.reference.accepts(torch.tensor([1e-6, 1e-6, 1e-6, 0.5]))

    def test_rough_arithmetic_allows_a_flipped_expert(self) -> None:
        rough = Reference(self.reference.prompts, self.reference.logits, torch.bfloat16)
        assert rough.accepts(torch.tensor([0.01, 0.02, 0.03, 0.9]))
        assert not rough.accepts(torch.tensor([0.01, 0.02, 0.9, 0.9]))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_not_a_number_is_never_accepted(self, dtype: torch.dtype) -> None:
        reference = Reference(self.reference.prompts, self.reference.logits, dtype)
        assert not reference.accepts(torch.tensor([float("nan"), float("nan")]))

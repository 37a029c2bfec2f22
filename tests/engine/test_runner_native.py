"""Native decoders give the tokens of transformers' own generate, however the work is cut into steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from mlxcel.core.errors import StartupError
from mlxcel.runners.generate.build import build_runner
from mlxcel.runners.generate.options import RopeOverrides, RunnerOptions
from mlxcel.runners.generate.providers import Declined, DecoderRequest, TorchProvider
from mlxcel.runners.generate.runner import PagedRunner
from mlxcel.runners.weights import open_checkpoint
from mlxcel.testing.row_driver import RowDriver
from mlxcel.testing.tiny_models import write_tiny_checkpoint

NEW_TOKENS = 20
OPTIONS = RunnerOptions(dtype="fp32", max_rows=8, kv_block_count=128)


def prompts(vocab_size: int, lengths: Sequence[int] = (5, 37, 1, 20)) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, vocab_size, (length,), generator=generator).tolist() for length in lengths]


def transformers_tokens(folder: Path, inputs: Sequence[Sequence[int]], new_tokens: int = NEW_TOKENS) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    settings = {"max_new_tokens": new_tokens, "do_sample": False, "pad_token_id": 0}
    return [model.generate(torch.tensor([ids]), **settings)[0, len(ids) :].tolist() for ids in inputs]


def native_runner(folder: Path, options: RunnerOptions = OPTIONS) -> PagedRunner:
    runner = build_runner(open_checkpoint(folder), options, [TorchProvider()])
    assert isinstance(runner, PagedRunner)
    assert runner.choice.path == "torch"
    return runner


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    def write(family: str, **fields: Any) -> Path:
        return write_tiny_checkpoint(family, tmp_path / "model", **fields)

    return write


ROPE = {"rope_theta": 10_000.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with biases, tied": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama without grouped heads": ("llama", {"num_key_value_heads": 4}),
    "llama, one key head, wide heads": ("llama", {"num_key_value_heads": 1, "head_dim": 32}),
    "mistral, window 16": ("mistral", {}),
    "ministral, mixed windows": ("ministral", {"layer_types": ["sliding_attention", "full_attention"]}),
    "qwen2": ("qwen2", {}),
    "qwen2, late window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "layer_types": None},
    ),
    "qwen3": ("qwen3", {}),
    "smollm3, layers without positions": ("smollm3", {"no_rope_layers": [1, 0]}),
    "granite": (
        "granite",
        {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1, "logits_scaling": 8.0},
    ),
    "linear": ("llama", {"rope_parameters": ROPE | {"rope_type": "linear", "factor": 4.0}}),
    "yarn": (
        "llama",
        {
            "max_position_embeddings": 128,
            "rope_parameters": ROPE | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        },
    ),
    "llama3": (
        "llama",
        {
            "rope_parameters": ROPE
            | {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "dynamic, past the trained window": (
        "llama",
        {"max_position_embeddings": 40, "rope_parameters": ROPE | {"rope_type": "dynamic", "factor": 4.0}},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens_equal_generate(case: str, checkpoint: Callable[..., Path]) -> None:
    family, fields = CASES[case]
    folder = checkpoint(family, **fields)
    runner = native_runner(folder)
    inputs = prompts(runner.info.vocab_size)
    expected = transformers_tokens(folder, inputs)
    assert len({token for row in expected for token in row}) > 8, (
        "the model repeats itself; it could not tell right from wrong"
    )
    driver = RowDriver(runner)
    assert [driver.generate([ids], NEW_TOKENS)[0] for ids in inputs] == expected
    assert driver.generate(inputs, NEW_TOKENS) == expected
    for chunk_tokens in (1, 7, 16):
        assert driver.generate(inputs, NEW_TOKENS, chunk_tokens=chunk_tokens) == expected


def test_window_of_the_whole_model_can_be_filled(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama", max_position_embeddings=50)
    runner = native_runner(folder)
    assert runner.info.context_tokens == 50
    (ids,) = prompts(runner.info.vocab_size, (40,))
    assert RowDriver(runner).generate([ids], 10) == transformers_tokens(folder, [ids], 10)


def test_a_smaller_window_is_kept_and_a_larger_one_clamped(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama", max_position_embeddings=50)
    assert native_runner(folder, RunnerOptions(context_tokens=20, kv_block_count=4)).info.context_tokens == 20
    assert native_runner(folder, RunnerOptions(context_tokens=900, kv_block_count=4)).info.context_tokens == 50


def test_pool_holds_every_row_or_what_the_budget_allows(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama", max_position_embeddings=100)
    info = native_runner(folder, RunnerOptions(dtype="fp32", max_rows=3)).info
    assert info.block_count == 3 * 7
    assert info.bytes_per_token == 2 * 2 * 2 * 16 * 4
    budget_bytes = 5 * info.block_tokens * info.bytes_per_token
    assert native_runner(folder, RunnerOptions(dtype="fp32", kv_budget_bytes=budget_bytes)).info.block_count == 5
    with pytest.raises(StartupError, match="budget of 10 bytes"):
        native_runner(folder, RunnerOptions(kv_budget_bytes=10))


def test_operators_scaling_is_the_checkpoints_own(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    plain = checkpoint("llama", max_position_embeddings=64)
    scaled = write_tiny_checkpoint(
        "llama",
        tmp_path / "scaled",
        max_position_embeddings=64,
        rope_parameters=ROPE | {"rope_type": "linear", "factor": 2.0},
    )
    options = RunnerOptions(dtype="fp32", max_rows=8, kv_block_count=128, rope=RopeOverrides(scale=2.0))
    runner = native_runner(plain, options)
    inputs = prompts(runner.info.vocab_size)
    assert runner.info.context_tokens == 128
    assert RowDriver(runner).generate(inputs, NEW_TOKENS) == transformers_tokens(scaled, inputs)


def test_cached_state_is_told_apart_by_what_decides_it(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama")
    options = (
        OPTIONS,
        RunnerOptions(dtype="bf16", kv_block_count=8),
        RunnerOptions(dtype="fp32", kv_block_count=8, rope=RopeOverrides(freq_base=5000.0)),
    )
    assert len({native_runner(folder, choice).info.fingerprint for choice in options}) == 3
    assert native_runner(folder).info.fingerprint == native_runner(folder).info.fingerprint


def test_bfloat16_stays_close(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("qwen3")
    inputs = prompts(384)
    exact = RowDriver(native_runner(folder)).generate(inputs, 4)
    rough = RowDriver(native_runner(folder, RunnerOptions(dtype="bf16", max_rows=8, kv_block_count=128))).generate(inputs, 4)
    agreeing = sum(a[0] == b[0] for a, b in zip(exact, rough, strict=True))
    assert agreeing >= 3


class Unwilling:
    """A provider that never serves."""

    name = "unwilling"

    def offer(self, request: DecoderRequest) -> Declined:
        return Declined(f"no kernels for {request.spec.family}")


def test_the_next_provider_serves_when_one_declines(checkpoint: Callable[..., Path]) -> None:
    runner = build_runner(open_checkpoint(checkpoint("llama")), OPTIONS, [Unwilling(), TorchProvider()])
    assert isinstance(runner, PagedRunner)
    assert runner.choice.path == "torch"
    assert "unwilling: no kernels for llama" in runner.choice.reason


def test_insisting_on_native_says_why_it_cannot_be(checkpoint: Callable[..., Path]) -> None:
    native = RunnerOptions(backend="native", kv_block_count=8)
    source = open_checkpoint(checkpoint("gemma2"))
    with pytest.raises(StartupError, match="gemma2 has no native decoder"):
        build_runner(source, native)
    with pytest.raises(StartupError, match="no kernels for llama"):
        build_runner(open_checkpoint(checkpoint("llama")), native, [Unwilling()])


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_an_absent_device_is_named(device: Any, checkpoint: Callable[..., Path]) -> None:
    if (torch.cuda if device == "cuda" else torch.mps).is_available():
        pytest.skip("the device is there")
    with pytest.raises(StartupError, match=f"--device {device}"):
        build_runner(open_checkpoint(checkpoint("llama")), RunnerOptions(device=device))


@pytest.mark.model
def test_smollm2_from_gguf_equals_transformers_on_the_decoded_weights(smollm2_path: Path) -> None:
    source = open_checkpoint(smollm2_path)
    runner = build_runner(
        source, RunnerOptions(dtype="fp32", max_rows=4, context_tokens=256, kv_block_count=32), [TorchProvider()]
    )
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**{key: value for key, value in source.config.items() if key != "model_type"})
    reference = LlamaForCausalLM.from_pretrained(
        None, config=config, state_dict=dict(source.state_dict_iter(torch.float32)), dtype=torch.float32
    ).eval()
    inputs = [[504, 3575, 282, 4649, 314], [1, 4093, 198, 19556, 17, 2, 198, 1, 520, 9531, 198]]
    settings = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = [reference.generate(torch.tensor([ids]), **settings)[0, len(ids) :].tolist() for ids in inputs]
    driver = RowDriver(runner)
    assert [driver.generate([ids], 16)[0] for ids in inputs] == expected
    assert driver.generate(inputs, 16, chunk_tokens=3) == expected

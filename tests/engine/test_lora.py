"""Rows with LoRA adapters give the tokens of a model with the adapters merged into its weights, whichever path runs it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from mlxcel.core.errors import CapabilityMissing, StartupError
from mlxcel.core.ports import ModelRunner
from mlxcel.core.sampling import SamplingParams
from mlxcel.core.work import RowSpec
from mlxcel.runners.generate.build import build_runner
from mlxcel.runners.generate.options import RunnerOptions
from mlxcel.runners.weights import open_checkpoint
from mlxcel.testing.row_driver import RowDriver
from mlxcel.testing.tiny_adapters import merge_adapters, write_tiny_adapter
from mlxcel.testing.tiny_models import write_tiny_checkpoint

NEW_TOKENS = 12
LAYERS = [f"model.layers.{layer}" for layer in range(2)]
ATTENTION = [f"{layer}.self_attn.{part}" for layer in LAYERS for part in ("q_proj", "v_proj", "o_proj")]
EVERYTHING = [
    *(f"{layer}.self_attn.{part}" for layer in LAYERS for part in ("q_proj", "k_proj", "v_proj", "o_proj")),
    *(f"{layer}.mlp.{part}" for layer in LAYERS for part in ("gate_proj", "up_proj", "down_proj")),
    "lm_head",
]
PROMPTS = [[int(token) for token in torch.randint(3, 300, (length,), generator=torch.Generator().manual_seed(length))]
           for length in (9, 21, 4, 14)]  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint("llama", tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    attention = write_tiny_adapter(folder / "attention", base, ATTENTION, seed=1)
    return attention, write_tiny_adapter(folder / "everything", base, EVERYTHING, seed=2, use_rslora=True)


def runner(model: Path, adapters: Sequence[Path] = (), **fields: Any) -> ModelRunner:
    options = RunnerOptions(dtype="fp32", max_rows=8, kv_block_count=64, adapters=tuple(adapters), **fields)
    return build_runner(open_checkpoint(model), options)


def merged_tokens(base: Path, folder: Path, changes: Sequence[tuple[Path, float]], prompt: list[int]) -> list[int]:
    merged = merge_adapters(folder, base, changes)
    model = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    out = model.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
    return [int(token) for token in out[0, len(prompt) :]]


@pytest.mark.parametrize("backend", ["native", "transformers"])
@pytest.mark.parametrize("chunk_tokens", [1 << 30, 5])
def test_rows_of_one_batch_have_different_adapters(
    base: Path, adapters: tuple[Path, Path], tmp_path: Path, backend: str, chunk_tokens: int
) -> None:
    rows: list[tuple[tuple[int, float], ...]] = [(), ((0, 1.0),), ((1, 0.5),), ((0, -0.75), (1, 1.0))]
    made = runner(base, adapters, backend=backend)
    found = RowDriver(made).generate(PROMPTS, NEW_TOKENS, adapters=rows, chunk_tokens=chunk_tokens)
    wanted = [
        merged_tokens(base, tmp_path / str(row), [(adapters[adapter], scale) for adapter, scale in scales], PROMPTS[row])
        for row, scales in enumerate(rows)
    ]
    assert found == wanted
    assert len({tuple(tokens) for tokens in RowDriver(made).generate([PROMPTS[0]] * 4, NEW_TOKENS, adapters=rows)}) == 4


@pytest.mark.parametrize("backend", ["native", "transformers"])
def test_a_row_alone_and_a_scale_of_zero(base: Path, adapters: tuple[Path, Path], tmp_path: Path, backend: str) -> None:
    driver = RowDriver(runner(base, adapters, backend=backend))
    prompt = PROMPTS[0]
    alone = driver.generate([prompt], NEW_TOKENS, adapters=[((1, 1.0),)])
    assert alone == [merged_tokens(base, tmp_path / "one", [(adapters[1], 1.0)], prompt)]
    plain = RowDriver(runner(base)).generate([prompt], NEW_TOKENS)
    assert driver.generate([prompt], NEW_TOKENS, adapters=[((0, 0.0), (1, 0.0))]) == plain
    assert plain != alone


def test_a_stateful_model_takes_adapters_too(tmp_path: Path) -> None:
    base = write_tiny_checkpoint("lfm2", tmp_path / "base")
    modules = [name.removesuffix(".weight") for name in load_file(base / "model.safetensors") if "proj.weight" in name]
    adapter = write_tiny_adapter(tmp_path / "adapter", base, modules)
    driver = RowDriver(runner(base, [adapter]))
    found = driver.generate(PROMPTS[:2], NEW_TOKENS, adapters=[((0, 1.0),), ()])
    assert found[0] == merged_tokens(base, tmp_path / "merged", [(adapter, 1.0)], PROMPTS[0])
    assert found[1] == merged_tokens(base, tmp_path / "plain", [], PROMPTS[1])


def test_packed_weights_keep_their_form(base: Path, adapters: tuple[Path, Path]) -> None:
    made = runner(base, adapters)
    assert made.choice.path == "torch"  # type: ignore[attr-defined]
    assert "kernels: they do not apply LoRA adapters" in made.choice.reason  # type: ignore[attr-defined]


def test_the_fingerprint_knows_the_adapters(base: Path, adapters: tuple[Path, Path]) -> None:
    choices = ((), adapters, adapters[::-1], adapters[:1])
    prints = {runner(base, chosen, kernels="off").info.fingerprint for chosen in choices}
    assert len(prints) == 4


def test_an_adapter_that_is_not_there_fails_its_row(base: Path, adapters: tuple[Path, Path]) -> None:
    made = runner(base, adapters)
    with pytest.raises(CapabilityMissing, match=r"no LoRA adapter has that id \(2 are loaded"):
        made.open(RowSpec(0, (1, 2), SamplingParams(), adapters=((2, 1.0),)))


def change_config(folder: Path, **fields: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def change_tensors(folder: Path, **tensors: torch.Tensor) -> None:
    file = folder / "adapter_model.safetensors"
    save_file(load_file(file) | {name.replace("__", "."): tensor for name, tensor in tensors.items()}, file)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"lora_alpha": float("nan")}, "scale nan"),
        ({"lora_alpha": "much"}, "lora_alpha"),
        ({"alpha_pattern": {"q_proj": float("inf")}}, "scale inf"),
    ],
)
def test_what_is_no_plain_lora_is_refused(base: Path, tmp_path: Path, fields: dict[str, Any], told: str) -> None:
    folder = write_tiny_adapter(tmp_path / "adapter", base, ATTENTION)
    change_config(folder, **fields)
    with pytest.raises(StartupError, match=told):
        runner(base, [folder])


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ({"model__norm__weight": torch.ones(64)}, r"model\.norm\.weight"),
        ({"base_model__model__lm_head__lora_magnitude_vector": torch.ones(4)}, "lora_magnitude_vector"),
        ({"base_model__model__lm_head__lora_A__weight": torch.ones(4, 64)}, "lm_head .A or B is missing"),
        (
            {
                "base_model__model__model__layers__7__mlp__up_proj__lora_A__weight": torch.ones(4, 64),
                "base_model__model__model__layers__7__mlp__up_proj__lora_B__weight": torch.ones(96, 4),
            },
            r"does not have: model\.layers\.7\.mlp\.up_proj",
        ),
        (
            {
                "base_model__model__lm_head__lora_A__weight": torch.ones(4, 60),
                "base_model__model__lm_head__lora_B__weight": torch.ones(96, 4),
            },
            r"the update of lm_head is \(96, 60\)",
        ),
        (
            {
                "base_model__model__lm_head__lora_A__weight": torch.full((4, 64), float("nan")),
                "base_model__model__lm_head__lora_B__weight": torch.ones(96, 4),
            },
            "lm_head holds values that are not finite",
        ),
    ],
)
@pytest.mark.parametrize("backend", ["native", "transformers"])
def test_tensors_that_do_not_map_are_named(
    base: Path, tmp_path: Path, backend: str, tensors: dict[str, torch.Tensor], told: str
) -> None:
    folder = write_tiny_adapter(tmp_path / "adapter", base, ATTENTION)
    change_tensors(folder, **tensors)
    with pytest.raises(StartupError, match=told):
        runner(base, [folder], backend=backend)


def test_files_that_are_not_there(base: Path, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="does not exist"):
        runner(base, [tmp_path / "nowhere"])
    with pytest.raises(StartupError, match="GGUF adapter"):
        runner(base, [tmp_path / "a.gguf"])
    folder = write_tiny_adapter(tmp_path / "adapter", base, ATTENTION)
    assert runner(base, [folder / "adapter_model.safetensors"])
    (folder / "adapter_config.json").unlink()
    with pytest.raises(StartupError, match=r"cannot read .*adapter_config\.json"):
        runner(base, [folder])

"""When the compiled decoder is offered, and what it is offered with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mlxcel.runners.generate.decoder.spec import spec_from_config
from mlxcel.runners.generate.options import RunnerOptions
from mlxcel.runners.generate.providers import Declined, DecoderRequest
from mlxcel.runners.kernels import library as library_module
from mlxcel.runners.kernels.library import KernelStatus, choose_level, load_library, status
from mlxcel.runners.kernels.provider import KernelProvider
from mlxcel.runners.weights import Checkpoint, QuantisedMatrix

CONFIG = {
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
BUILT = not isinstance(load_library(), str)
needs_kernels = pytest.mark.skipif(not BUILT, reason="the kernels were not built")


class ConstantCheckpoint(Checkpoint):
    """Every tensor filled with one number."""

    kind = "safetensors"
    path = Path("constant")

    def names(self) -> list[str]:
        return []

    def shape(self, name: str) -> tuple[int, ...]:
        raise KeyError(name)

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        sizes = {"embed": (40, 32), "q_proj": (32, 32), "k_proj": (16, 32), "v_proj": (16, 32), "o_proj": (32, 32)}
        sizes |= {"gate_proj": (48, 32), "up_proj": (48, 32), "down_proj": (32, 48)}
        shape: tuple[int, ...] = next((size for part, size in sizes.items() if part in name), (32,))
        return torch.full(shape, 0.01, dtype=dtype or torch.float32)

    def quantised(self, name: str) -> QuantisedMatrix | None:
        return None

    def close(self) -> None:
        pass


def offer(
    config: dict[str, Any] | None = None, device: str = "cpu", dtype: torch.dtype | None = None, **options: Any
) -> Any:
    spec = spec_from_config(CONFIG | (config or {}))
    assert spec is not None
    chosen = RunnerOptions(kv_block_count=8, threads=1, **options)
    return KernelProvider().offer(DecoderRequest(spec, ConstantCheckpoint(), chosen, torch.device(device), dtype, 128))


@needs_kernels
@pytest.mark.parametrize(
    ("arguments", "elements_bytes"),
    [
        ({}, 2 + 2),
        ({"dtype": torch.float32}, 4 + 4),
        ({"kv_types": ("int8", "auto")}, 1 + 4 / 16 + 2),
        ({"kv_types": ("fp32", "int8")}, 4 + 1 + 4 / 16),
    ],
)
def test_cache_types_decide_the_bytes_of_a_token(arguments: dict[str, Any], elements_bytes: float) -> None:
    decoder = offer(**arguments)
    assert decoder.bytes_per_token == 2 * 16 * elements_bytes
    assert (decoder.block_tokens, decoder.block_count, decoder.vocab_size) == (16, 8, 40)


@needs_kernels
def test_a_decoder_that_declines_says_why() -> None:
    for arguments, reason in (
        ({"kernels": "off"}, "switched off"),
        ({"device": "meta"}, "on the CPU only"),
        ({"config": {"head_dim": 24}}, "multiple of 16"),
        ({"config": {"num_attention_heads": 40}}, "share a key/value head"),
    ):
        declined = offer(**arguments)
        assert isinstance(declined, Declined)
        assert reason in declined.reason


@needs_kernels
def test_the_level_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    library = load_library()
    assert not isinstance(library, str)
    names = [library.level_name(level) for level in library.levels()]
    for name in names:
        monkeypatch.setenv("MLXCEL_KERNELS", name)
        assert status() == KernelStatus(True, name)
    monkeypatch.delenv("MLXCEL_KERNELS")
    assert status() == KernelStatus(True, names[-1])
    assert choose_level(library, "portable") == library.levels()[0]
    monkeypatch.setenv("MLXCEL_KERNELS", "warp")
    declined = offer()
    assert isinstance(declined, Declined)
    assert declined.reason.startswith("kernel level 'warp' is not available here; this machine has portable")
    monkeypatch.setenv("MLXCEL_KERNELS", "off")
    assert status() == KernelStatus(False, "", "MLXCEL_KERNELS is off")


def test_a_missing_or_foreign_library_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load_library.cache_clear()
    try:
        monkeypatch.setattr(library_module, "_PATH", tmp_path / "none.so")
        assert status() == KernelStatus(False, "", "the package was installed without compiled kernels")
        declined = offer()
        assert isinstance(declined, Declined)
        load_library.cache_clear()
        (tmp_path / "broken.so").write_bytes(b"not a library")
        monkeypatch.setattr(library_module, "_PATH", tmp_path / "broken.so")
        assert status().reason.startswith("the compiled kernels cannot be loaded")
    finally:
        load_library.cache_clear()

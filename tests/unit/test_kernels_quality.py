"""What the compiled kernels' rounding costs: perplexity of a real model against its decoded weights in float32."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from mlxcel.runners.generate.batch import RaggedBatch
from mlxcel.runners.generate.decoder.spec import spec_from_config
from mlxcel.runners.kernels.decoder import KernelOptions, KvMode, NativeDecoder
from mlxcel.runners.kernels.library import Level, load_library
from mlxcel.runners.weights import open_checkpoint
from mlxcel.text.tokenizer import load_tokenizer

PROSE = Path(__file__).parent.parent / "data" / "prose.txt"
LOADED = load_library()
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(isinstance(LOADED, str), reason="the kernels were not built"),
]


def perplexity(decoder: NativeDecoder, ids: list[int], step_tokens: int) -> float:
    loss = 0.0
    blocks = torch.arange(-(-len(ids) // 16), dtype=torch.int32)[None]
    for start in range(0, len(ids) - 1, step_tokens):
        fed = ids[start : min(start + step_tokens, len(ids) - 1)]
        positions = torch.arange(start, start + len(fed), dtype=torch.int32)
        batch = RaggedBatch(
            token_ids=torch.tensor(fed, dtype=torch.int32),
            positions=positions,
            row_starts=torch.tensor([0, len(fed)], dtype=torch.int32),
            context_lens=positions[-1:] + 1,
            block_tables=blocks,
            logit_indices=torch.arange(len(fed), dtype=torch.int32),
        )
        logprobs = decoder.forward(batch).log_softmax(-1)
        loss -= float(logprobs[torch.arange(len(fed)), torch.tensor(ids[start + 1 : start + 1 + len(fed)])].sum())
    return math.exp(loss / (len(ids) - 1))


def test_rounding_costs_less_than_one_percent_of_perplexity(smollm2_path: Path) -> None:
    """Integer products (steps of few tokens) and tiles where there are any (steps of many), with 16-bit and int8 caches."""
    assert not isinstance(LOADED, str)
    with torch.inference_mode():
        checkpoint = open_checkpoint(smollm2_path)
        spec = spec_from_config(checkpoint.config)
        assert spec is not None
        ids = [1, *load_tokenizer(smollm2_path).encode(PROSE.read_text(encoding="utf-8"))][:1000]
        level: Level = LOADED.levels()[-1]
        block_count = -(-len(ids) // 16)
        exact = KernelOptions(level, block_count, exact=True, k_mode="fp32", v_mode="fp32")
        expected = perplexity(NativeDecoder(LOADED, spec, checkpoint, exact), ids, 256)
        runs: tuple[tuple[KvMode, int], ...] = (("bf16", 16), ("bf16", 256), ("int8", 16))
        for mode, step_tokens in runs:
            options = KernelOptions(level, block_count, k_mode=mode, v_mode=mode)
            measured = perplexity(NativeDecoder(LOADED, spec, checkpoint, options), ids, step_tokens)
            assert abs(measured / expected - 1) < 0.01, (mode, step_tokens, measured, expected)

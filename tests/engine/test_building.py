"""Models that are built in several threads at once come out whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import torch
from transformers import AutoModel, PreTrainedModel

from mlxcel.core.ports import ModelRunner
from mlxcel.runners.embed.loading import load_transformer
from mlxcel.runners.generate.build import build_runner
from mlxcel.runners.generate.options import RunnerOptions
from mlxcel.runners.weights import open_checkpoint
from mlxcel.testing.tiny_models import write_tiny_checkpoint

ROUNDS = 5
OPTIONS = RunnerOptions(dtype="fp32", kv_block_count=16, backend="transformers")


def test_threads_do_not_leave_each_others_substitutes_in_transformers(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma2", tmp_path)
    tie_weights, init_weights = PreTrainedModel.tie_weights, PreTrainedModel.init_weights
    linspace, dtype = torch.linspace, torch.get_default_dtype()
    barrier = Barrier(4)

    def chat() -> ModelRunner:
        barrier.wait()
        return build_runner(open_checkpoint(folder), OPTIONS)

    def vectors() -> PreTrainedModel:
        barrier.wait()
        return load_transformer(folder, AutoModel, device=torch.device("cpu"), dtype=torch.bfloat16)

    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(ROUNDS):
                built = [pool.submit(task) for task in (chat, vectors, chat, vectors)]
                for future in built:
                    future.result()
        assert PreTrainedModel.tie_weights is tie_weights
        assert PreTrainedModel.init_weights is init_weights
        assert torch.linspace is linspace
        assert torch.get_default_dtype() is dtype
    finally:
        PreTrainedModel.tie_weights, PreTrainedModel.init_weights = tie_weights, init_weights
        torch.linspace = linspace
        torch.set_default_dtype(dtype)

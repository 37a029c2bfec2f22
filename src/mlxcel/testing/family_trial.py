"""Tries one model type: a tiny random checkpoint through the real loader, its greedy tokens against transformers' own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from mlxcel.core.errors import StartupError
from mlxcel.core.ports import ModelRunner
from mlxcel.runners.generate.build import build_runner
from mlxcel.runners.generate.choice import RunnerChoice
from mlxcel.runners.generate.hf.stateful import StatefulRunner
from mlxcel.runners.generate.options import RunnerOptions
from mlxcel.runners.generate.runner import PagedRunner
from mlxcel.runners.weights import open_checkpoint
from mlxcel.testing.row_driver import RowDriver
from mlxcel.testing.tiny_models import write_tiny_checkpoint

PROMPT_TOKENS = (5, 37, 2, 20)
NEW_TOKENS = 10
CHUNK_TOKENS = 7

Verdict = Literal["equal", "differs", "failed", "refused", "untried"]
"""Served with transformers' tokens, served with others, broke while running, refused while loading, no tiny checkpoint."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one model type.

    Attributes:
        family: transformers' model type.
        verdict: see :data:`Verdict`.
        path: :attr:`RunnerChoice.path <mlxcel.runners.generate.choice.RunnerChoice.path>` when it was served, else empty.
        reference: where the expected tokens come from: "generate", or "forward" (the plain forward pass over the whole
            sequence for every token) where ``generate`` fails or disagrees with the model's own forward pass.
        single, batched, chunked: the tokens are equal with the prompts one after another, all together, and all together
            in pieces of ``CHUNK_TOKENS``.
        note: why no faster path serves it, why it was refused, or what failed.
    """

    family: str
    verdict: Verdict
    path: str = ""
    reference: str = ""
    single: bool = False
    batched: bool = False
    chunked: bool = False
    note: str = ""


def try_family(family: str) -> Outcome:
    """Write a tiny checkpoint of a model type, serve it in float32, and compare.

    Raises:
        Exception: the runner failed after it was built.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    with TemporaryDirectory() as folder:
        try:
            write_tiny_checkpoint(family, Path(folder))
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            prompts = _prompts(model)
        except Exception as error:  # configs and modules of any family may raise anything
            return Outcome(family, "untried", note=f"no tiny checkpoint: {_first_line(error)}")
        try:
            runner = build_runner(open_checkpoint(Path(folder)), RunnerOptions(dtype="fp32", max_rows=8, kv_block_count=128))
        except StartupError as error:
            return Outcome(family, "refused", note=error.message.splitlines()[0])
        try:
            return _compare(family, model, runner, prompts)
        finally:
            runner.shutdown()


def _prompts(model: PreTrainedModel) -> list[list[int]]:
    vocab_size = min(int(model.config.get_text_config(decoder=True).vocab_size), 250)
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, vocab_size, (length,), generator=generator).tolist() for length in PROMPT_TOKENS]


def _compare(family: str, model: PreTrainedModel, runner: ModelRunner, prompts: Sequence[Sequence[int]]) -> Outcome:
    driver = RowDriver(runner)
    single = [driver.generate([prompt], NEW_TOKENS)[0] for prompt in prompts]
    batched = driver.generate(prompts, NEW_TOKENS)
    chunked = driver.generate(prompts, NEW_TOKENS, chunk_tokens=CHUNK_TOKENS)
    reference, note = "generate", ""
    expected: list[list[int]] = []
    try:
        expected = _generate_tokens(model, prompts)
    except Exception as error:  # generate's own preparations fail for some
        note = f"; generate itself fails: {_first_line(error)}"
    if single != expected:
        plain = _forward_tokens(model, prompts)
        if single == plain:
            reference, expected = "forward", plain
            note = note or "; generate gives other tokens than the model's own forward pass"
    choice = _choice(runner)
    return Outcome(
        family,
        "equal" if single == batched == chunked == expected else "differs",
        choice.path,
        reference,
        single=single == expected,
        batched=batched == expected,
        chunked=chunked == expected,
        note=choice.reason + note,
    )


def _choice(runner: ModelRunner) -> RunnerChoice:
    if isinstance(runner, PagedRunner | StatefulRunner):
        return runner.choice
    raise TypeError(f"{type(runner).__name__} does not say how it was chosen")


def _generate_tokens(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    model.generation_config.eos_token_id = None
    settings: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0}
    return [model.generate(torch.tensor([prompt]), **settings)[0, len(prompt) :].tolist() for prompt in prompts]


@torch.inference_mode()
def _forward_tokens(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    rows = [list(prompt) for prompt in prompts]
    for row in rows:
        for _ in range(NEW_TOKENS):
            row.append(int(model(input_ids=torch.tensor([row]), use_cache=False).logits[0, -1].argmax()))
    return [row[len(prompt) :] for row, prompt in zip(rows, prompts, strict=True)]


def _first_line(error: BaseException) -> str:
    """The first line of what went wrong underneath."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(":") if lines else type(error).__name__

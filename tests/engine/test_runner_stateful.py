"""Rows with a state of their own: snapshots, continuation, and errors that stay in their row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from mlxcel.core.errors import GenerationFailed
from mlxcel.core.sampling import SamplingParams
from mlxcel.core.work import RowResult, RowSpec, RowStep, StepPlan
from mlxcel.runners.generate.build import build_runner
from mlxcel.runners.generate.hf.row_state import RowFeeder, RowState, choose_feeder, find_slots, measure_state
from mlxcel.runners.generate.hf.self_check import Reference
from mlxcel.runners.generate.hf.stateful import StatefulRunner
from mlxcel.runners.generate.options import RunnerOptions
from mlxcel.runners.weights import open_checkpoint
from mlxcel.testing.row_driver import GREEDY, RowDriver
from mlxcel.testing.tiny_models import write_tiny_checkpoint

PROMPT = tuple(range(10, 30))


@pytest.fixture(scope="module", params=["lfm2", "mamba2", "recurrent_gemma"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(request.param, tmp_path_factory.mktemp("stateful") / "model")


@pytest.fixture
def runner(folder: Path) -> Iterator[StatefulRunner]:
    built = load(folder, RunnerOptions(dtype="fp32", max_rows=3))
    yield built
    built.shutdown()


def load(folder: Path, options: RunnerOptions) -> StatefulRunner:
    built = build_runner(open_checkpoint(folder), options)
    assert isinstance(built, StatefulRunner)
    return built


def step(runner: StatefulRunner, *rows: RowStep) -> tuple[RowResult, ...]:
    return runner.run(StepPlan(rows)).rows


def failure(result: RowResult) -> str:
    assert isinstance(result.error, GenerationFailed)
    return result.error.message


def decode(runner: StatefulRunner, row_id: int, token: int, position: int, count: int) -> list[int]:
    tokens = [token]
    for offset in range(count):
        (result,) = step(runner, RowStep(row_id, (tokens[-1],), position + offset))
        assert result.error is None
        tokens.extend(result.token_ids)
    return tokens


def test_info_says_how_state_is_kept(runner: StatefulRunner) -> None:
    info = runner.info
    assert (info.state, info.block_count, info.supports_drafts) == ("snapshot", 0, False)
    assert info.state_bytes > 0


def test_a_restored_row_goes_on_as_the_original(runner: StatefulRunner) -> None:
    expected = RowDriver(runner).generate([PROMPT], 6)[0]
    runner.open(RowSpec(1, PROMPT, GREEDY))
    step(runner, RowStep(1, PROMPT[:13], 0, sample=False))
    handle = runner.snapshot(1)
    assert handle is not None
    step(runner, RowStep(1, (200, 201, 202), 13, sample=False))
    runner.close(1)
    for row_id in (2, 3):
        runner.open(RowSpec(row_id, PROMPT, GREEDY))
        runner.restore(row_id, handle)
        (first,) = step(runner, RowStep(row_id, PROMPT[13:], 13))
        assert decode(runner, row_id, first.token_ids[0], len(PROMPT), 5) == expected


def test_a_snapshot_is_a_copy_of_its_moment(runner: StatefulRunner) -> None:
    runner.open(RowSpec(1, PROMPT, GREEDY))
    (first,) = step(runner, RowStep(1, PROMPT, 0))
    handle = runner.snapshot(1)
    assert handle is not None
    answer = decode(runner, 1, first.token_ids[0], len(PROMPT), 4)
    runner.open(RowSpec(2, PROMPT, GREEDY))
    runner.restore(2, handle)
    assert decode(runner, 2, first.token_ids[0], len(PROMPT), 4) == answer
    runner.close(2)
    runner.drop_snapshot(handle)
    runner.drop_snapshot(handle)
    runner.open(RowSpec(2, PROMPT, GREEDY))
    with pytest.raises(KeyError):
        runner.restore(2, handle)


def test_snapshots_stay_within_their_budget(folder: Path) -> None:
    probe = load(folder, RunnerOptions(dtype="fp32"))
    size_bytes = probe.info.state_bytes + len(PROMPT) * probe.info.bytes_per_token
    runner = load(folder, RunnerOptions(dtype="fp32", kv_budget_bytes=int(size_bytes * 2.5)))
    runner.open(RowSpec(1, PROMPT, GREEDY))
    step(runner, RowStep(1, PROMPT, 0))
    first, second, third = (runner.snapshot(1) for _ in range(3))
    assert first is not None
    assert second is not None
    assert third is None
    runner.drop_snapshot(first)
    assert runner.snapshot(1) is not None


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (RowStep(9, PROMPT, 0), "not open"),
        (RowStep(1, PROMPT, 3), "holds 0 tokens"),
        (RowStep(1, (), 0), "holds 0 tokens"),
        (RowStep(1, (5,), 0, draft_ids=(6,)), "holds 0 tokens"),
        (RowStep(1, (5, 100_000), 0), "outside the vocabulary"),
        (RowStep(1, PROMPT * 60, 0), "grew past its window"),
    ],
)
def test_a_row_that_cannot_run_fails_alone(bad: RowStep, message: str, folder: Path) -> None:
    runner = load(folder, RunnerOptions(dtype="fp32", max_rows=3, context_tokens=1000))
    (expected,) = RowDriver(runner).generate([PROMPT], 1)
    for row_id in (1, 2):
        runner.open(RowSpec(row_id, PROMPT, GREEDY))
    failed, healthy = step(runner, bad, RowStep(2, PROMPT, 0))
    assert message in failure(failed)
    assert list(healthy.token_ids) == expected


def test_rows_are_limited(runner: StatefulRunner) -> None:
    for row_id in range(3):
        runner.open(RowSpec(row_id, PROMPT, GREEDY))
    with pytest.raises(MemoryError):
        runner.open(RowSpec(3, PROMPT, GREEDY))
    runner.close(0)
    runner.open(RowSpec(3, PROMPT, GREEDY))


def test_a_seeded_row_draws_the_same_alone_and_among_strangers(runner: StatefulRunner) -> None:
    sampling = SamplingParams(temperature=1.0, seed=4)
    driver = RowDriver(runner)
    alone = driver.generate([PROMPT], 8, sampling=sampling)[0]
    assert driver.generate([(50, 51), PROMPT], 8, sampling=sampling)[1] == alone


def test_state_held_in_modules_is_found_and_swapped(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("recurrent_gemma", tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    slots = find_slots(model, Reference.of(model))
    assert {name for _, name in slots} == {"conv1d_state", "recurrent_states"}
    assert all(getattr(module, name) is None for module, name in slots)


def test_without_a_usable_cache_the_row_is_run_again(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("llama", tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    feeder = RowFeeder(model, "recompute")
    state = RowState()
    feeder.feed(state, PROMPT[:7])
    logits = feeder.feed(state, PROMPT[7:])
    expected = model(input_ids=torch.tensor([PROMPT]), use_cache=False).logits[0, -1:]
    torch.testing.assert_close(logits, expected.detach())
    assert state.copy().token_ids == list(PROMPT)


def test_the_fastest_right_way_of_feeding_is_taken(tmp_path: Path) -> None:
    reasons = {}
    for family in ("falcon", "mamba"):
        folder = write_tiny_checkpoint(family, tmp_path / family)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        reasons[family] = choose_feeder(model, Reference.of(model))[1]
    assert reasons["falcon"] == ""
    assert reasons["mamba"] == "; continuing its cache by pieces gives other logits"


def test_measured_state_predicts_its_size(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("lfm2", tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    feeder, _ = choose_feeder(model, Reference.of(model))
    fixed_bytes, token_bytes = measure_state(feeder, Reference.of(model))
    state = RowState()
    feeder.feed(state, PROMPT * 3)
    assert state.size_bytes == fixed_bytes + token_bytes * len(PROMPT) * 3

"""The paged runner: rows, blocks, drafts, and errors that stay in their row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mlxcel.core.errors import CapabilityMissing, GenerationFailed
from mlxcel.core.ports import BlockTransfer, ModelInfo
from mlxcel.core.sampling import SamplingParams
from mlxcel.core.work import RowResult, RowSpec, RowStep, StepPlan
from mlxcel.runners.generate.batch import RaggedBatch
from mlxcel.runners.generate.build import build_runner
from mlxcel.runners.generate.choice import RunnerChoice
from mlxcel.runners.generate.options import RunnerOptions
from mlxcel.runners.generate.providers import TorchProvider
from mlxcel.runners.generate.runner import PagedRunner
from mlxcel.runners.generate.sampler import Sampler
from mlxcel.runners.weights import open_checkpoint
from mlxcel.testing.row_driver import GREEDY, RowDriver
from mlxcel.testing.tiny_models import write_tiny_checkpoint

PROMPT = tuple(range(10, 30))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint("llama", tmp_path_factory.mktemp("paged") / "model")


@pytest.fixture
def runner(folder: Path) -> Iterator[PagedRunner]:
    options = RunnerOptions(dtype="fp32", max_rows=4, kv_block_count=32)
    built = build_runner(open_checkpoint(folder), options, [TorchProvider()])
    assert isinstance(built, PagedRunner)
    yield built
    built.shutdown()


def step(runner: PagedRunner, *rows: RowStep) -> tuple[RowResult, ...]:
    return runner.run(StepPlan(rows)).rows


def failure(result: RowResult) -> str:
    assert isinstance(result.error, GenerationFailed)
    assert not result.token_ids
    return result.error.message


def test_results_come_in_the_order_of_the_plan_and_prefill_pieces_have_none(runner: PagedRunner) -> None:
    for row_id in (7, 3):
        runner.open(RowSpec(row_id, PROMPT, GREEDY, blocks=(row_id, row_id + 1)))
    first, second = step(runner, RowStep(7, PROMPT[:9], 0, sample=False), RowStep(3, PROMPT, 0))
    assert first == RowResult(7)
    assert second.row_id == 3
    assert len(second.token_ids) == 1


def test_blocks_may_come_with_the_step_that_needs_them(runner: PagedRunner) -> None:
    expected = RowDriver(runner).generate([PROMPT], 1)[0]
    runner.open(RowSpec(1, PROMPT, GREEDY))
    (unfinished,) = step(runner, RowStep(1, PROMPT[:16], 0, new_blocks=(9,), sample=False))
    assert unfinished == RowResult(1)
    (done,) = step(runner, RowStep(1, PROMPT[16:], 16, new_blocks=(4,)))
    assert list(done.token_ids) == expected


def test_adopted_blocks_are_read_and_not_computed_again(runner: PagedRunner) -> None:
    runner.open(RowSpec(1, PROMPT, GREEDY, blocks=(5, 6)))
    (whole,) = step(runner, RowStep(1, PROMPT, 0))
    runner.open(RowSpec(2, PROMPT, GREEDY, blocks=(5,)))
    (adopting,) = step(runner, RowStep(2, PROMPT[16:], 16, new_blocks=(8,)))
    assert adopting.token_ids == whole.token_ids


def test_a_seeded_row_draws_the_same_alone_and_among_strangers(runner: PagedRunner) -> None:
    sampling = SamplingParams(temperature=1.0, seed=11)
    driver = RowDriver(runner)
    alone = driver.generate([PROMPT], 12, sampling=sampling)[0]
    strangers = [tuple(range(40, 45)), PROMPT, tuple(range(100, 131))]
    assert driver.generate(strangers, 12, sampling=sampling)[1] == alone
    assert driver.generate([PROMPT], 12, sampling=SamplingParams(temperature=1.0, seed=12))[0] != alone


def test_rows_are_limited_and_come_back(runner: PagedRunner) -> None:
    for row_id in range(4):
        runner.open(RowSpec(row_id, PROMPT, GREEDY))
    with pytest.raises(MemoryError):
        runner.open(RowSpec(4, PROMPT, GREEDY))
    runner.close(2)
    runner.close(2)
    runner.close(99)
    runner.open(RowSpec(4, PROMPT, GREEDY))
    with pytest.raises(MemoryError):
        runner.open(RowSpec(5, PROMPT, GREEDY))


def test_a_reused_row_starts_with_an_empty_table(runner: PagedRunner) -> None:
    runner.open(RowSpec(1, PROMPT, GREEDY, blocks=(1, 2)))
    runner.close(1)
    runner.open(RowSpec(2, PROMPT, GREEDY))
    assert "do not fit its KV blocks" in failure(step(runner, RowStep(2, PROMPT, 0))[0])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (RowStep(99, PROMPT, 0), "row 99 is not open"),
        (RowStep(1, PROMPT, 13), "do not fit its KV blocks"),
        (RowStep(1, PROMPT, -1), "do not fit its KV blocks"),
        (RowStep(1, (), 0), "do not fit its KV blocks"),
        (RowStep(1, (5, 100_000), 0), "outside the vocabulary"),
        (RowStep(1, (-1,), 0), "outside the vocabulary"),
        (RowStep(1, (5,), 0, draft_ids=(100_000,)), "outside the vocabulary"),
        (RowStep(1, PROMPT, 0, new_blocks=(32,)), "outside the pool"),
        (RowStep(1, PROMPT, 0, new_blocks=(-1,)), "outside the pool"),
        (RowStep(1, PROMPT, 0, new_blocks=(3,) * 100), "grew past its window"),
    ],
)
def test_a_row_that_cannot_run_fails_alone(bad: RowStep, message: str, runner: PagedRunner) -> None:
    (expected,) = RowDriver(runner).generate([PROMPT], 1)
    for row_id in (1, 2):
        runner.open(RowSpec(row_id, PROMPT, GREEDY, blocks=(2 * row_id, 2 * row_id + 1)))
    failed, healthy = step(runner, bad, RowStep(2, PROMPT, 0))
    assert message in failure(failed)
    assert list(healthy.token_ids) == expected


def test_a_step_of_failures_runs_no_model(runner: PagedRunner) -> None:
    assert "not open" in failure(step(runner, RowStep(5, (1,), 0))[0])
    assert step(runner) == ()


class TestDrafts:
    """Drafts change how many steps an answer takes, never the answer."""

    def answer(self, runner: PagedRunner, drafts: list[tuple[int, ...]], sampling: SamplingParams = GREEDY) -> list[int]:
        """Generate 12 tokens, offering each draft in turn after what is known by then."""
        runner.open(RowSpec(1, PROMPT, sampling, blocks=(20, 3, 11, 12)))
        (result,) = step(runner, RowStep(1, PROMPT, 0))
        tokens = list(result.token_ids)
        while len(tokens) < 12:
            draft = drafts.pop(0) if drafts else ()
            position = len(PROMPT) + len(tokens) - 1
            (result,) = step(runner, RowStep(1, (tokens[-1],), position, draft_ids=draft))
            assert result.error is None
            assert 1 <= len(result.token_ids) <= len(draft) + 1
            tokens.extend(result.token_ids)
        runner.close(1)
        return tokens[:12]

    @pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=1.0, seed=5)], ids=["greedy", "seeded"])
    def test_right_wrong_and_half_right_drafts_give_the_same_text(
        self, sampling: SamplingParams, runner: PagedRunner
    ) -> None:
        plain = self.answer(runner, [], sampling)
        right = tuple(plain[1:5])
        wrong = tuple((token + 1) % 300 for token in plain[1:5])
        assert self.answer(runner, [right], sampling) == plain
        assert self.answer(runner, [wrong, wrong], sampling) == plain
        assert self.answer(runner, [right[:2] + wrong[2:], (), wrong[:1]], sampling) == plain

    def test_an_accepted_draft_saves_steps(self, runner: PagedRunner) -> None:
        plain = self.answer(runner, [])
        runner.open(RowSpec(1, PROMPT, GREEDY, blocks=(20, 3)))
        step(runner, RowStep(1, PROMPT, 0))
        (result,) = step(runner, RowStep(1, (plain[0],), len(PROMPT), draft_ids=tuple(plain[1:4])))
        assert list(result.token_ids) == plain[1:5]

    def test_drafting_and_plain_rows_share_a_step(self, runner: PagedRunner) -> None:
        plain = self.answer(runner, [])
        for row_id, blocks in ((1, (0, 1)), (2, (2, 3)), (3, (4, 5))):
            runner.open(RowSpec(row_id, PROMPT, GREEDY, blocks=blocks))
        step(runner, *(RowStep(row_id, PROMPT, 0) for row_id in (1, 2, 3)))
        fed = (plain[0],)
        results = step(
            runner,
            RowStep(1, fed, len(PROMPT)),
            RowStep(2, fed, len(PROMPT), draft_ids=tuple(plain[1:3])),
            RowStep(3, fed, len(PROMPT)),
        )
        assert [list(result.token_ids) for result in results] == [plain[1:2], plain[1:4], plain[1:2]]


class Recorder:
    """A decoder that keeps its last batch and answers with fixed logits."""

    vocab_size, block_tokens, block_count, bytes_per_token = 50, 16, 8, 4

    def __init__(self) -> None:
        self.batch: RaggedBatch | None = None

    def forward(self, batch: RaggedBatch) -> torch.Tensor:
        self.batch = batch
        return torch.randn(len(batch.logit_indices), self.vocab_size)


def test_the_batch_is_laid_out_as_decoders_are_promised() -> None:
    decoder = Recorder()
    info = ModelInfo("m", "f", 50, 64, block_count=8, max_rows=4)
    runner = PagedRunner(decoder, Sampler(50), info, RunnerChoice("torch", ""))
    runner.open(RowSpec(1, (), GREEDY, blocks=(7, 2)))
    runner.open(RowSpec(2, (), GREEDY, blocks=(4,)))
    runner.open(RowSpec(3, (), GREEDY, blocks=(5,)))
    step(
        runner,
        RowStep(1, (9,), 20),
        RowStep(2, (6, 7, 8), 0, sample=False),
        RowStep(3, (3,), 5, draft_ids=(1, 2)),
    )
    batch = decoder.batch
    assert batch is not None
    columns = {name: getattr(batch, name) for name in RaggedBatch.__slots__ if name != "row_adapters"}
    assert {column.dtype for column in columns.values()} == {torch.int32}
    assert batch.token_ids.tolist() == [9, 6, 7, 8, 3, 1, 2]
    assert batch.positions.tolist() == [20, 0, 1, 2, 5, 6, 7]
    assert batch.row_starts.tolist() == [0, 1, 4, 7]
    assert batch.context_lens.tolist() == [21, 3, 8]
    assert batch.block_tables.tolist() == [[7, 2], [4, 0], [5, 0]]
    assert batch.logit_indices.tolist() == [0, 4, 5, 6]


def test_exported_blocks_carry_a_row_to_another_runner(runner: PagedRunner, folder: Path) -> None:
    options = RunnerOptions(dtype="fp32", max_rows=4, kv_block_count=32)
    other = build_runner(open_checkpoint(folder), options, [TorchProvider()])
    assert isinstance(runner, BlockTransfer)
    assert isinstance(other, BlockTransfer)
    assert other.info.fingerprint == runner.info.fingerprint
    runner.open(RowSpec(1, PROMPT, GREEDY, blocks=(5, 6)))
    (expected,) = step(runner, RowStep(1, PROMPT, 0))
    data = runner.export_block(5)
    assert len(data) == runner.info.block_tokens * runner.info.bytes_per_token
    other.import_block(30, data)
    other.open(RowSpec(1, PROMPT, GREEDY, blocks=(30,)))
    (result,) = other.run(StepPlan((RowStep(1, PROMPT[16:], 16, new_blocks=(2,)),))).rows
    assert result.token_ids == expected.token_ids
    with pytest.raises(ValueError, match="takes 8192 bytes, not 8191"):
        other.import_block(30, data[1:])
    assert other.export_block(30) == data


def test_adapters_that_do_not_exist_are_refused(runner: PagedRunner) -> None:
    with pytest.raises(CapabilityMissing, match="no LoRA adapter"):
        runner.open(RowSpec(1, PROMPT, GREEDY, adapters=((0, 1.0),)))
    runner.open(RowSpec(1, PROMPT, GREEDY, adapters=((0, 0.0),)))


def test_paged_rows_have_no_snapshots(runner: PagedRunner) -> None:
    runner.open(RowSpec(1, PROMPT, GREEDY, blocks=(1,)))
    assert runner.snapshot(1) is None
    with pytest.raises(ValueError, match="adopt blocks"):
        runner.restore(1, 1)
    runner.drop_snapshot(1)

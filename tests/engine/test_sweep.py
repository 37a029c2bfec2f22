"""The sweep over model types: its trials tell right from wrong, survive a crash, and its page says what happened."""

from __future__ import annotations

import os
import time

import pytest

from mlxcel.testing import family_trial, sweep
from mlxcel.testing.family_trial import Outcome, try_family


@pytest.mark.parametrize(
    ("family", "path", "reference"),
    [
        ("gemma2", "transformers", "generate"),
        ("mamba2", "transformers-stateful", "generate"),
        ("roberta", "transformers-stateful", "forward"),
    ],
)
def test_a_family_that_works(family: str, path: str, reference: str) -> None:
    outcome = try_family(family)
    assert (outcome.verdict, outcome.path, outcome.reference) == ("equal", path, reference), outcome.note
    assert outcome.single
    assert outcome.batched
    assert outcome.chunked


def test_a_family_that_reads_both_ways_is_refused() -> None:
    outcome = try_family("xlnet")
    assert outcome.verdict == "refused"
    assert "left to right" in outcome.note


def test_a_type_that_transformers_cannot_build_is_not_tried() -> None:
    outcome = try_family("musicgen")
    assert outcome.verdict == "untried"
    assert outcome.note.startswith("no tiny checkpoint")


def test_wrong_tokens_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object) -> list[list[int]]:
        return [[0] * family_trial.NEW_TOKENS for _ in family_trial.PROMPT_TOKENS]

    monkeypatch.setattr(family_trial, "_generate_tokens", wrong)
    monkeypatch.setattr(family_trial, "_forward_tokens", wrong)
    outcome = try_family("llama")
    assert outcome.verdict == "differs"
    assert not outcome.single


def crash(family: str, sender: object) -> None:
    os._exit(9)


def hang(family: str, sender: object) -> None:
    time.sleep(60)


def test_a_crash_ends_one_trial_only(monkeypatch: pytest.MonkeyPatch) -> None:
    context = sweep.trial_context()
    monkeypatch.setattr(sweep, "_report", crash)
    assert sweep.try_apart(context, "llama") == Outcome("llama", "failed", note="the process ended with status 9")
    monkeypatch.setattr(sweep, "_report", hang)
    assert sweep.try_apart(context, "llama", 0.1) == Outcome("llama", "failed", note="took more than 0 s")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "minimax", "deepseek_v32", "reformer", "no_such_type"])
def test_a_trial_in_its_own_process(family: str) -> None:
    outcome = sweep.try_apart(sweep.trial_context(), family)
    assert outcome.verdict == ("untried" if family == "no_such_type" else "equal"), outcome.note


def test_the_page_counts_and_explains() -> None:
    batched = "a has no native decoder; batched over paged KV"
    text = sweep.page(
        [
            Outcome("b", "equal", "kernels", "generate", True, True, True, "b is a native family"),
            Outcome("a", "equal", "transformers", "forward", True, True, True, batched),
            Outcome("d", "differs", "transformers", "generate", True, False, True, "x"),
            Outcome("c", "refused", note="c | <reads> both ways (relative error 0.3)"),
        ]
    )
    assert "Of the 4 causal model types" in text
    assert "2 are served with the tokens that transformers gives: 1 with those of `generate`" in text
    assert "| native | 1 |" in text
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows == [
        "| `a` | transformers, batched | yes | yes | yes |  |",
        "| `b` | native | yes | yes | yes |  |",
        "| `c` | refused |  |  |  | c \\| \\<reads> both ways |",
        "| `d` | transformers, batched | yes | no | yes | x |",
    ]

"""``mlxcel embed`` and ``mlxcel rerank``: their output, and one line for what goes wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mlxcel.cli.main import main
from mlxcel.testing.tiny_vectors import write_tiny_embedder, write_tiny_reranker


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_embedder("bert", tmp_path_factory.mktemp("embedder")))


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_reranker("bert", tmp_path_factory.mktemp("reranker")))


def test_embed_prints_a_vector_a_line_and_the_similarities(embedder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "-m", embedder, "-p", "the mill", "-p", "the river"]) == 0
    first, second, blank, title, *matrix = capsys.readouterr().out.splitlines()
    assert (blank, title) == ("", "cosine similarity")
    left, right = (np.array(json.loads(line)) for line in (first, second))
    shown = np.array([[float(value) for value in line.split()] for line in matrix])
    np.testing.assert_allclose(shown, [[1, left @ right], [left @ right, 1]], atol=2e-4)


def test_embed_as_json(embedder: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--dimensions", "4", "--pooling", "cls", "--embd-normalize", "1", "--max-length", "8", "--batch-size", "2"]
    assert main(["embed", "-m", embedder, "-p", "the mill " * 20, *options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["embeddings", "shapes", "prompt_tokens", "similarity"]
    assert (report["shapes"], report["prompt_tokens"]) == ([[4]], 8)
    assert np.abs(report["embeddings"][0]).sum() == pytest.approx(1, abs=1e-4)


def test_rerank_orders_the_documents(reranker: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["rerank", "-m", reranker, "-q", "the mill", "-d", "the river", "-d", "the mill", "-d", "x"]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["scores", "ranking", "kind", "prompt_tokens"]
    assert report["ranking"] == sorted(range(3), key=lambda index: -report["scores"][index])
    assert report["kind"] == "sequence_classifier"
    assert main([*command, "--top-n", "1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert f"[{report['ranking'][0]}]" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["embed"], "nothing to embed"),
        (["embed", "-p", "a", "--image", "b.png"], "takes text only"),
        (["embed", "-p", "a", "--dimensions", "99"], "'dimensions' must be between 1 and 32"),
        (["rerank", "-q", "a", "-d", "b"], "Unsupported reranker model type"),
    ],
)
def test_what_goes_wrong_is_one_line(
    embedder: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([arguments[0], "-m", embedder, *arguments[1:]]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line

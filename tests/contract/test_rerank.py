"""Reranking routes over a real socket: both shapes, all paths, documented messages, and the judge's prompt."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from mlxcel.app import build_app, open_models
from mlxcel.config.embeddings import EmbeddingConfig
from mlxcel.config.model import ModelConfig
from mlxcel.config.server import ServerConfig
from mlxcel.testing.app import LiveServer
from mlxcel.testing.tiny_vectors import write_tiny_reranker

QUERY = "what is the capital of france"
DOCUMENTS = ["rome is the capital of italy", "paris is the capital of france", "the old mill", "the rain"]


def serve(**options: Any) -> LiveServer:
    model = ModelConfig(model=options.pop("model", ""), device="cpu")
    config = ServerConfig(model=model, embeddings=EmbeddingConfig(**options))
    return LiveServer(build_app(config, open_models(config)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = write_tiny_reranker("bert", tmp_path_factory.mktemp("models") / "tiny-ranker")
    with serve(model=str(folder)) as running:
        yield running


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = write_tiny_reranker(
        "qwen3", tmp_path_factory.mktemp("models") / "tiny-judge", vocab_size=520, max_position_embeddings=4096
    )
    with serve(reranker_model=str(folder)) as running:
        yield running


def post(server: LiveServer, path: str = "/v1/rerank", **body: Any) -> httpx2.Response:
    return httpx2.post(server.url + path, json=body, timeout=30)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v1/reranking", "/rerank", "/reranking"])
def test_documents_get_the_envelope(server: LiveServer, path: str) -> None:
    body = post(server, path, query=QUERY, documents=DOCUMENTS).json()
    assert list(body) == ["model", "object", "results", "usage"]
    assert (body["model"], body["object"]) == ("tiny-ranker", "list")
    scores = [result["relevance_score"] for result in body["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)
    assert sorted(result["index"] for result in body["results"]) == [0, 1, 2, 3]
    assert all("document" not in result for result in body["results"])
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] == 4 * (6 + 3) + 6 + 6 + 3 + 2


def test_texts_get_the_bare_array(server: LiveServer) -> None:
    envelope = post(server, query=QUERY, documents=DOCUMENTS).json()["results"]
    array = post(server, query=QUERY, texts=DOCUMENTS, truncate=True).json()
    assert [(entry["index"], entry["score"]) for entry in array] == [
        (entry["index"], entry["relevance_score"]) for entry in envelope
    ]
    shown = post(server, query=QUERY, texts=DOCUMENTS, return_text=True).json()
    assert [entry["text"] for entry in shown] == [DOCUMENTS[entry["index"]] for entry in shown]
    raw = post(server, query=QUERY, texts=DOCUMENTS, raw_scores=True).json()
    assert [1 / (1 + math.exp(-entry["score"])) for entry in raw] == pytest.approx([entry["score"] for entry in array])


def test_both_lists_stay_with_the_envelope(server: LiveServer) -> None:
    body = post(server, query=QUERY, documents=DOCUMENTS[:1], texts=DOCUMENTS).json()
    assert len(body["results"]) == 1


def test_the_best_come_first_and_are_repeated_verbatim(server: LiveServer) -> None:
    items: list[Any] = [{"text": text, "source": {"page": index}} for index, text in enumerate(DOCUMENTS)]
    body = post(server, query={"text": QUERY}, documents=items, top_n=2, return_documents=True).json()
    assert len(body["results"]) == 2
    assert all(result["document"] == items[result["index"]] for result in body["results"])
    everything = post(server, query=QUERY, documents=DOCUMENTS, top_n=99).json()["results"]
    assert [entry["index"] for entry in everything][:2] == [result["index"] for result in body["results"]]


def test_equal_scores_keep_the_request_order(server: LiveServer) -> None:
    results = post(server, query=QUERY, documents=["the mill"] * 5).json()["results"]
    assert [result["index"] for result in results] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"documents": ["a"]}, '"query" must be provided'),
        ({"query": 5, "documents": ["a"]}, '"query" must be a string'),
        ({"query": "a"}, '"documents" must be a non-empty string array'),
        ({"query": "a", "documents": []}, '"documents" must be a non-empty string array'),
        ({"query": "a", "documents": "b"}, '"documents" must be a non-empty string array'),
        ({"query": "a", "documents": [1]}, '"documents" must be a non-empty string array'),
        ({"query": "a", "texts": []}, '"texts" must be a non-empty string array'),
        ({"query": "a", "documents": ["b"], "top_n": 0}, "'top_n' must be at least 1"),
        ({"query": "a", "documents": ["b"], "instruction": "c"}, "reads no instruction"),
        ({"query": "a", "documents": ["b", {}]}, "'documents[1]' has neither text nor an image"),
        ({"query": {}, "documents": ["b"]}, "'query' has neither text nor an image"),
        ({"query": "a", "documents": [{"image": "data:,"}]}, "takes text only"),
        ({"query": "a", "documents": ["b"], "model": "c"}, "this route serves tiny-ranker"),
    ],
)
def test_what_cannot_be_served_is_explained(server: LiveServer, body: dict[str, Any], message: str) -> None:
    answer = post(server, **body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert message in answer.json()["error"]["message"]


def test_a_ranking_server_describes_itself(server: LiveServer) -> None:
    assert httpx2.get(server.url + "/v1/models").json()["data"][0]["capabilities"] == ["rerank"]
    assert httpx2.get(server.url + "/health").json()["status"] == "ok"
    answer = post(server, "/v1/embeddings", input="a")
    assert (answer.status_code, answer.json()["error"]["type"]) == (501, "not_implemented")
    chat = post(server, "/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}])
    assert chat.status_code == 501
    assert "rerank" in chat.json()["error"]["message"]


def test_the_judge_needs_no_template_from_the_caller(judge: LiveServer) -> None:
    body = post(judge, query=QUERY, documents=DOCUMENTS, top_n=2, return_documents=True).json()
    assert len(body["results"]) == 2
    assert all(0 < result["relevance_score"] < 1 for result in body["results"])
    assert len({result["relevance_score"] for result in body["results"]}) == 2
    assert body["usage"]["prompt_tokens"] > 4 * 60  # the judge's instructions are counted
    other = post(judge, query=QUERY, documents=DOCUMENTS, instruction="find mills").json()["results"]
    assert other[0]["relevance_score"] != body["results"][0]["relevance_score"]

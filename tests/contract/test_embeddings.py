"""Embedding routes over a real socket: the official client, the native shape, every documented status, all server forms."""

from __future__ import annotations

import base64
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest

from mlxcel.app import Models, build_app, open_models
from mlxcel.config.embeddings import EmbeddingConfig
from mlxcel.config.model import ModelConfig
from mlxcel.config.server import ServerConfig
from mlxcel.core.errors import StartupError
from mlxcel.core.vectors import TokenRow, Vector
from mlxcel.engine.batches import BatchClient, BatchLimits
from mlxcel.testing.app import LiveServer, scripted_source
from mlxcel.testing.tiny_models import write_tiny_checkpoint
from mlxcel.testing.tiny_vectors import write_tiny_embedder, write_tiny_late_interaction, write_tiny_reranker

Floats = np.ndarray[Any, np.dtype[np.float32]]
TEXTS = ["the old mill", "what is the capital of france", "x"]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_embedder("bert", tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="module")
def instructed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_embedder("qwen3", tmp_path_factory.mktemp("models") / "tiny-qwen3")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_reranker("bert", tmp_path_factory.mktemp("models") / "tiny-judge")


def config_of(model: Path | None = None, **options: Any) -> ServerConfig:
    return ServerConfig(
        model=ModelConfig(model=str(model) if model else "", device="cpu"), embeddings=EmbeddingConfig(**options)
    )


def serve(config: ServerConfig) -> LiveServer:
    return LiveServer(build_app(config, open_models(config)))


@pytest.fixture(scope="module")
def server(embedder: Path) -> Iterator[LiveServer]:
    with serve(config_of(embedder)) as running:
        yield running


def post(server: LiveServer, path: str, **body: Any) -> httpx2.Response:
    return httpx2.post(server.url + path, json=body, timeout=30)


def vectors(server: LiveServer, given: Any, **body: Any) -> Floats:
    answer = post(server, "/v1/embeddings", input=given, **body)
    assert answer.status_code == 200, answer.text
    return np.array([entry["embedding"] for entry in answer.json()["data"]], dtype=np.float32)


def fault(answer: httpx2.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["type"], error["message"]


# ---- the answer ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [{}, {"encoding_format": "float"}])
def test_the_official_client_reads_both_encodings(server: LiveServer, asked: dict[str, Any]) -> None:
    """Left to itself, the client asks for base64 and decodes it."""
    strict = bool(asked)
    url = server.url + "/v1"
    with openai.OpenAI(base_url=url, api_key="-", max_retries=0, _strict_response_validation=strict) as client:
        answer = client.embeddings.create(model="tiny-bert", input=TEXTS, **asked)
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    assert answer.model == "tiny-bert"
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 5 + 8 + 3
    np.testing.assert_allclose([entry.embedding for entry in answer.data], vectors(server, TEXTS), atol=1e-6)


def test_base64_holds_the_same_numbers(server: LiveServer) -> None:
    answer = post(server, "/v1/embeddings", input=TEXTS, encoding_format="base64").json()
    decoded = np.stack([np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in answer["data"]])
    np.testing.assert_array_equal(decoded, vectors(server, TEXTS))
    assert "shape" not in answer["data"][0]


def test_one_text_is_a_list_of_one(server: LiveServer) -> None:
    np.testing.assert_allclose(vectors(server, TEXTS[0]), vectors(server, TEXTS)[:1], atol=1e-6)


def test_token_ids_are_used_verbatim(server: LiveServer) -> None:
    ids = post(server, "/tokenize", content=TEXTS[1], add_special=True).json()["tokens"]
    np.testing.assert_allclose(vectors(server, ids)[0], vectors(server, TEXTS[1])[0], atol=1e-6)
    bare = post(server, "/v1/embeddings", input=[ids[1:-1], ids]).json()
    assert bare["usage"]["prompt_tokens"] == 2 * len(ids) - 2
    assert bare["data"][0]["embedding"] != bare["data"][1]["embedding"]


def test_typed_parts_are_items(server: LiveServer) -> None:
    parts = [{"type": "text", "text": text} for text in TEXTS]
    np.testing.assert_allclose(vectors(server, parts), vectors(server, TEXTS), atol=1e-6)


def test_dimensions_are_cut_and_scaled_again(server: LiveServer) -> None:
    whole, cut = vectors(server, TEXTS), vectors(server, TEXTS, dimensions=8)
    np.testing.assert_allclose(cut, whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize(
    ("norm", "measure"),
    [(0, lambda v: np.abs(v).max(1) / 32760), (1, lambda v: np.abs(v).sum(1)), (2, lambda v: np.sqrt((v**2).sum(1))),
     (5, lambda v: (np.abs(v) ** 5).sum(1) ** 0.2)],
)  # fmt: skip
def test_each_scaling(server: LiveServer, norm: int, measure: Callable[[Floats], Floats]) -> None:
    np.testing.assert_allclose(measure(vectors(server, TEXTS, embd_normalize=norm)), 1, rtol=1e-4)
    raw = vectors(server, TEXTS, embd_normalize=-1)
    assert np.abs(np.linalg.norm(raw, axis=1) - 1).min() > 1e-3


def test_a_long_text_is_cut_at_the_models_window_and_says_so(server: LiveServer) -> None:
    long = "the river runs past the old mill " * 40
    answer = post(server, "/v1/embeddings", input=["mill", long])
    assert answer.headers["x-mlxcel-truncated"] == "1"
    assert answer.json()["usage"]["prompt_tokens"] == 3 + 128
    assert "x-mlxcel-truncated" not in post(server, "/v1/embeddings", input="mill").headers


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
@pytest.mark.parametrize("field", ["input", "content"])
def test_the_native_shape_is_an_array_of_arrays(server: LiveServer, path: str, field: str) -> None:
    answer = post(server, path, **{field: TEXTS[:2]}).json()
    assert [list(entry) for entry in answer] == [["index", "embedding"]] * 2
    np.testing.assert_allclose([entry["embedding"][0] for entry in answer], vectors(server, TEXTS[:2]), atol=1e-6)


def test_an_instruction_is_wrapped_where_the_family_has_a_form_for_it(instructed: Path, server: LiveServer) -> None:
    with serve(config_of(instructed)) as other:
        asked = vectors(other, "the old mill", instruction="find rivers")
        written = vectors(other, "Instruct: find rivers\nQuery: the old mill")
        np.testing.assert_allclose(asked, written, atol=1e-6)
    np.testing.assert_array_equal(vectors(server, "mill", instruction="find"), vectors(server, "mill"))


def test_late_interaction_shows_its_shape(tmp_path: Path) -> None:
    with serve(config_of(write_tiny_late_interaction(tmp_path / "col"))) as other:
        plain = post(other, "/v1/embeddings", input=["mill", "the old mill"]).json()["data"]
        packed = post(other, "/v1/embeddings", input=["mill", "the old mill"], encoding_format="base64").json()["data"]
        native = post(other, "/embedding", input=["mill", "the old mill"]).json()
    for number, entry in enumerate(plain):
        matrix = np.array(entry["embedding"], dtype=np.float32)
        np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1, atol=1e-5)
        assert packed[number]["shape"] == list(matrix.shape)
        decoded = np.frombuffer(base64.b64decode(packed[number]["embedding"]), "<f4").reshape(matrix.shape)
        np.testing.assert_allclose(decoded, matrix, atol=1e-6)
        np.testing.assert_allclose(native[number]["embedding"], matrix, atol=1e-6)
    assert len(plain[1]["embedding"]) == len(plain[0]["embedding"]) + 2  # one row a token, the added ones included


# ---- refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, '"input" or "content" must be provided'),
        ({"input": []}, "'input' must not be empty"),
        ({"input": ""}, "'input[0]': must not be an empty string"),
        ({"input": ["a", ""]}, "'input[1]': must not be an empty string"),
        ({"input": [[]]}, "'input[0]': must not be an empty list"),
        ({"input": [3, 512]}, "'input[0]': token id 512 is out of vocabulary range (vocab_size 512)"),
        ({"input": [[1], [-1]]}, "'input[1]': token id -1 is out of vocabulary range (vocab_size 512)"),
        ({"input": [{"type": "image_url", "image_url": {"url": "data:,"}}]}, "the model tiny-bert takes text only"),
        ({"input": "a", "dimensions": 0}, "'dimensions' must be between 1 and 32"),
        ({"input": "a", "dimensions": 33}, "'dimensions' must be between 1 and 32"),
        ({"input": "a", "encoding_format": "hex"}, "'encoding_format' must be 'float' or 'base64'"),
        ({"input": "a", "embd_normalize": -2}, "'embd_normalize' must be -1, 0, 1, 2 or a higher norm"),
        ({"input": "a", "model": "gpt-4"}, "'model': this route serves tiny-bert"),
        ({"input": 5}, "'input'"),
        ({"input": ["a"] * 5000}, "more than 4096 inputs"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/embeddings", "/embedding"])
def test_what_cannot_be_served_names_the_field(server: LiveServer, path: str, body: dict[str, Any], message: str) -> None:
    status, kind, text = fault(post(server, path, **body))
    assert (status, kind) == (400, "invalid_request_error")
    assert message in text


def test_generation_is_refused_on_a_server_that_only_embeds(server: LiveServer) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/completion", {"prompt": "Hi"}),
        ("/v1/responses", {"model": "any", "input": "Hi"}),
    ):
        status, kind, text = fault(post(server, path, **body))
        assert (status, kind) == (501, "not_implemented"), path
        assert "embedding" in text
    answer = post(server, "/v1/messages", model="any", max_tokens=3, messages=[{"role": "user", "content": "Hi"}])
    assert answer.status_code == 501
    assert fault(post(server, "/v1/rerank", query="a", documents=["b"]))[2].startswith(
        "This server does not support reranking. Start it with `--reranking`"
    )
    assert httpx2.get(server.url + "/slots").status_code == 501


def test_a_chat_server_says_how_to_get_embeddings(tmp_path: Path) -> None:
    with LiveServer.of(scripted_source("fine", tmp_path)) as chat:
        for path in ("/v1/embeddings", "/embedding"):
            status, kind, text = fault(post(chat, path, input="a"))
            assert (status, kind) == (501, "not_implemented")
            assert text.startswith("This server does not support embeddings. Start it with `--embeddings`")


class Gated:
    """A model that answers when it is let."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def run(self, rows: Sequence[TokenRow]) -> list[Vector]:
        self.gate.wait(10)
        return [Vector(np.ones(32, dtype="<f4").tobytes(), (32,)) for _ in rows]

    def close(self) -> None:
        self.gate.set()


def gated(embedder: Path, model: Gated, limits: BatchLimits) -> LiveServer:
    models = open_models(config_of(embedder))
    assert models.embedder is not None
    served = dataclasses.replace(models.embedder, client=BatchClient[Vector](lambda: model, limits, name="gated"))
    return LiveServer(build_app(config_of(embedder), dataclasses.replace(models, embedder=served)))


def test_a_late_answer_is_504(embedder: Path) -> None:
    model = Gated()
    with gated(embedder, model, BatchLimits(timeout_s=0.05)) as server:
        status, kind, text = fault(post(server, "/v1/embeddings", input="a"))
        model.gate.set()
    assert (status, kind) == (504, "server_timeout")
    assert "did not answer" in text


def test_a_full_queue_is_503(embedder: Path) -> None:
    model = Gated()
    with gated(embedder, model, BatchLimits(batch_tokens=2, queue_places=1)) as server, ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(post, server, "/v1/embeddings", input="a") for _ in range(8)]
        refused = next(answer.result() for answer in as_completed(answers))
        assert fault(refused)[:2] == (503, "server_busy")
        assert refused.headers["retry-after"] == "1"
        model.gate.set()
        assert {answer.result().status_code for answer in answers} == {200, 503}


# ---- forms of a server --------------------------------------------------------------------------------------------------


def test_an_embedding_server_describes_itself(server: LiveServer) -> None:
    listed = httpx2.get(server.url + "/v1/models").json()["data"]
    assert [(entry["id"], entry["capabilities"]) for entry in listed] == [("tiny-bert", ["embedding"])]
    assert httpx2.get(server.url + "/health").json() == {"status": "ok", "model": "tiny-bert"}
    assert httpx2.get(server.url + "/props").json()["capabilities"] == {
        "completion": False,
        "restricted_by": None,
        "embedding": {"model": "tiny-bert", "pooling": "mean", "embd_normalize": 2},
        "rerank": None,
    }


def test_three_models_side_by_side(embedder: Path, reranker: Path, tmp_path: Path) -> None:
    chat = scripted_source("fine", tmp_path)
    config = config_of(embedding_model=str(embedder), reranker_model=str(reranker), pooling="cls", embd_normalize=1)
    models = dataclasses.replace(open_models(config), chat=chat)
    with LiveServer(build_app(config, models)) as server:
        answer = post(server, "/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}]).json()
        assert answer["choices"][0]["message"]["content"] == "fine"
        assert np.abs(vectors(server, "mill")).sum() == pytest.approx(1, abs=1e-4)
        assert post(server, "/v1/rerank", query="a", documents=["b"]).status_code == 200
        listed = httpx2.get(server.url + "/v1/models").json()["data"]
        assert [entry["capabilities"] for entry in listed] == [["completion"], ["embedding"], ["rerank"]]
        shown = httpx2.get(server.url + "/props").json()["capabilities"]
        assert shown["completion"] is True
        assert shown["embedding"] == {"model": "tiny-bert", "pooling": "cls", "embd_normalize": 1}
        assert shown["rerank"] == {"model": "tiny-judge", "kind": "sequence_classifier"}


def test_a_restricted_server_loads_nothing_else(embedder: Path, tmp_path: Path) -> None:
    chat = write_tiny_checkpoint("llama", tmp_path)
    models = open_models(config_of(chat, embedding_model=str(embedder), embeddings_only=True))
    assert models.chat is None
    assert models.embedder is not None
    with LiveServer(build_app(config_of(), models)) as server:
        status, _, text = fault(post(server, "/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}]))
        assert status == 501
        assert "--embeddings" in text
        assert httpx2.get(server.url + "/props").json()["capabilities"]["restricted_by"] == "--embeddings"


def test_the_same_folder_for_both_roles_is_one_reranker(reranker: Path) -> None:
    models = open_models(config_of(reranker, reranker_model=str(reranker)))
    assert (models.chat, models.embedder) == (None, None)
    assert models.reranker is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding_model": "E"}, "two embedding models"),
        ({"reranking_only": True}, "--reranking needs a reranker"),
        ({"pooling": "rank"}, "--reranking needs a reranker"),
        ({"pooling": "none"}, "--pooling none"),
        ({"embeddings_only": True, "reranking_only": True}, "exclude each other"),
        ({"reranker_model": "E"}, "Unsupported reranker model type 'bert'"),
    ],
)
def test_contradicting_options_are_one_line(embedder: Path, options: dict[str, Any], message: str) -> None:
    given = {key: str(embedder) if value == "E" else value for key, value in options.items()}
    main = write_tiny_embedder("bert", embedder.parent / "other")
    with pytest.raises(StartupError, match=message):
        open_models(config_of(main, **given))


def test_two_rerankers_are_refused(reranker: Path) -> None:
    other = write_tiny_reranker("bert", reranker.parent / "other")
    with pytest.raises(StartupError, match="two rerankers"):
        open_models(config_of(other, reranker_model=str(reranker)))


def test_a_chat_model_is_no_embedding_model(tmp_path: Path) -> None:
    chat = write_tiny_checkpoint("llama", tmp_path)
    with pytest.raises(StartupError, match="--embedding-model: the checkpoint is not an embedding model"):
        open_models(config_of(chat, embedding_model=str(chat)))
    with pytest.raises(StartupError, match="--embeddings needs an embedding model"):
        open_models(config_of(chat, embeddings_only=True))


def test_no_model_at_all_says_so() -> None:
    with pytest.raises(StartupError, match="no model was named"):
        open_models(config_of())
    with pytest.raises(StartupError, match="no model was named"):
        _ = Models().name

"""The real all-MiniLM-L6-v2: the vectors of sentence-transformers' recipe, for texts of every length and script."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from mlxcel.app import Models, open_models
from mlxcel.config.embeddings import EmbeddingConfig
from mlxcel.config.model import ModelConfig
from mlxcel.config.server import ServerConfig
from mlxcel.core.chat import TextPart
from mlxcel.core.vectors import Embeddings, EmbedJob
from mlxcel.services.embeddings import EmbeddingService

pytestmark = [pytest.mark.model]
Floats = np.ndarray[Any, np.dtype[np.float32]]
WORDS = (
    "river", "mill", "Paris", "capital", "the", "of", "naïve", "größer", "東京", "駅", "函数", "हिन्दी", "вода", "السلام",
    "모델", "def f(x):", "👩‍👩‍👧", "3.14", "¿qué?",
)  # fmt: skip


def texts(count: int) -> list[str]:
    rng = random.Random(5)
    return [" ".join(rng.choices(WORDS, k=min(int(rng.lognormvariate(2, 1)) + 1, 150))) for _ in range(count)]


@pytest.fixture(scope="module")
def models(minilm_path: Path) -> Models:
    return open_models(ServerConfig(model=ModelConfig(model=str(minilm_path)), embeddings=EmbeddingConfig()))


def embed(minilm_path: Path, *batches: list[str]) -> list[Embeddings]:
    """The results of requests that are made at the same time."""
    config = ServerConfig(model=ModelConfig(model=str(minilm_path)), embeddings=EmbeddingConfig())

    async def run() -> list[Embeddings]:
        served = open_models(config).embedder
        if served is None:
            raise RuntimeError("not an embedder")
        served.client.start()
        await served.client.wait_ready()
        with ThreadPoolExecutor(1) as pool:
            service = EmbeddingService(served, pool)
            jobs = [EmbedJob(tuple(TextPart(text) for text in batch)) for batch in batches]
            results = await asyncio.gather(*(service.embed(job) for job in jobs))
        await served.client.close()
        return results

    return asyncio.run(run())


def numbers(result: Embeddings) -> Floats:
    return np.stack([np.frombuffer(vector.data, "<f4") for vector in result.vectors])


def recipe(folder: Path, given: list[str]) -> Floats:
    """Padded batches with a mask, masked mean, unit length: what sentence-transformers does for this model."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    for start in range(0, len(given), 8):
        batch = tokenizer(given[start : start + 8], padding=True, truncation=True, max_length=256, return_tensors="pt")
        with torch.inference_mode():
            states = model(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None].float()
        rows.append(torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1))
    return torch.cat(rows).numpy()


def test_200_texts_equal_the_recipe(minilm_path: Path) -> None:
    given = texts(200)
    (ours,) = embed(minilm_path, given)
    by_length = sorted(range(len(given)), key=lambda index: len(given[index]))
    wanted = recipe(minilm_path, [given[index] for index in by_length])
    cosines = (numbers(ours)[by_length] * wanted).sum(1)
    assert cosines.min() > 0.99999


def test_neighbours_change_nothing(minilm_path: Path) -> None:
    probe, long = "The capital of France is Paris.", " ".join(["river"] * 400)
    alone, first, last, beside = embed(minilm_path, [probe], [probe, long, "x"], ["x", long, probe], ["x"] * 40 + [probe])
    wanted = numbers(alone)[0]
    for vector in (numbers(first)[0], numbers(last)[2], numbers(beside)[40]):
        assert float(vector @ wanted) > 0.99999
    assert (first.truncated, last.truncated) == ((1,), (1,))
    assert alone.prompt_tokens == 9


def test_meaning_shows(minilm_path: Path) -> None:
    question = "What is the capital of France?"
    (result,) = embed(minilm_path, [question, "Paris is France's capital city.", "The mill wheel turns."])
    query, right, wrong = numbers(result)
    assert float(query @ right) > 0.7
    assert float(query @ wrong) < 0.2


def test_the_models_files_are_honoured(models: Models) -> None:
    assert models.embedder is not None
    info = models.embedder.info
    assert (info.dimensions, info.max_tokens, info.pooling, info.norm) == (384, 256, "mean", 2)

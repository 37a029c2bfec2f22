"""Oversized and odd values cost a 400 at most: never a server error, never the neighbours' time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from mlxcel.testing.app import LiveServer, checkpoint_source, scripted_source
from mlxcel.testing.surfaces import SURFACES, Answer, Surface
from mlxcel.testing.tiny_models import write_tiny_checkpoint

every_surface = pytest.mark.parametrize("surface", SURFACES.values(), ids=SURFACES.keys())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A tiny real model."""
    path = write_tiny_checkpoint("llama", tmp_path_factory.mktemp("llama"))
    with LiveServer.of(checkpoint_source(path)) as server:
        yield server


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer.of(scripted_source("hi", tmp_path_factory.mktemp("scripted"))) as server:
        yield server


def ask(server: LiveServer, surface: Surface, body: dict[str, Any]) -> tuple[int, Answer]:
    answer = httpx2.post(server.url + surface.path, json=body, timeout=60)
    return answer.status_code, surface.read(answer.status_code, answer.content, answer.headers["content-type"])


@every_surface
@pytest.mark.parametrize(
    "bias",
    [{"5": 1e308}, {"5": -1e308}, {"5": 1e30, "6": 1e30}, [[5, 1e308]], [["the", 1e308]], [[5, False], [5, 1e308]],
     {str(token_id): -100 for token_id in range(256)}],
)  # fmt: skip
def test_biases_of_any_size_leave_numbers(model: LiveServer, surface: Surface, bias: Any) -> None:
    status, answer = ask(model, surface, surface.body("Hello", max_tokens=3, logit_bias=bias))
    assert (status, answer.error) == (200, None)


@every_surface
@pytest.mark.parametrize("key", ["²", "9" * 5000, "99999999999999999999", "１２", "-1", "1e3", "", " ", "0x10"])
def test_keys_of_biases_that_are_no_ids_are_texts_or_told(scripted: LiveServer, surface: Surface, key: str) -> None:
    status, _ = ask(scripted, surface, surface.body("Hello", max_tokens=3, logit_bias={key: 1}))
    assert status in (200, 400)


FLOODS: dict[str, Any] = {
    "stop": ["a" * 1_000_000],
    "stop_sequences": ["a" * 1_000_000],
    "logit_bias": [["word " * 200_000, 1]],
    "dry_sequence_breakers": [f"a word {number}" for number in range(20_000)],
}


@pytest.mark.parametrize(
    ("name", "field"),
    [
        (name, field)
        for name, surface in SURFACES.items()
        for field in FLOODS
        if "stop" not in field or field == surface.stop
    ],
)
def test_floods_of_text_in_small_fields_are_told(scripted: LiveServer, name: str, field: str) -> None:
    surface = SURFACES[name]
    body = surface.body("Hello", max_tokens=3, dry_multiplier=1.0) | {field: FLOODS[field]}
    started_s = time.monotonic()
    status, answer = ask(scripted, surface, body)
    assert status == 400
    assert field.removesuffix("_sequences") in str(answer.error)
    assert time.monotonic() - started_s < 4.0

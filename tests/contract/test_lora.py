"""LoRA adapters from the client's side: listed, scaled for all or for one request, and kept apart in the cache."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mlxcel.cli.serve import parse
from mlxcel.core.errors import StartupError
from mlxcel.testing.app import LiveServer, checkpoint_source, scripted_source
from mlxcel.testing.tiny_adapters import write_tiny_adapter
from mlxcel.testing.tiny_models import write_tiny_checkpoint

Live = Callable[..., LiveServer]
MODULES = [f"model.layers.{layer}.self_attn.{part}_proj" for layer in range(2) for part in "qkvo"]
PROMPT = "The river runs past the old mill and the stones are still. " * 4


class Adapted:
    """A server with two adapters, ``a`` at scale 1 and ``b`` at 0.5, or as ``flags`` say."""

    def __init__(self, live: Live, folder: Path, *flags: str) -> None:
        model = write_tiny_checkpoint("llama", folder / "model")
        self.a = write_tiny_adapter(folder / "a", model, MODULES, seed=1)
        self.b = write_tiny_adapter(folder / "b", model, MODULES, seed=2)
        config = parse(["--dtype", "fp32", "--lora", str(self.a), "--lora-scaled", f"{self.b}:0.5", *flags])
        self.server = live(checkpoint_source(model, config), config)

    def scales(self) -> list[float]:
        return [entry["scale"] for entry in httpx2.get(self.server.url + "/lora-adapters").json()]

    def set(self, body: object) -> httpx2.Response:
        return httpx2.post(self.server.url + "/lora-adapters", json=body)

    def complete(self, **body: Any) -> dict[str, Any]:
        wanted = {"prompt": PROMPT, "n_predict": 12, "temperature": 0, "ignore_eos": True} | body
        answer: dict[str, Any] = httpx2.post(self.server.url + "/completion", json=wanted, timeout=60).json()
        return answer


@pytest.fixture
def adapted(live: Live, tmp_path: Path) -> Adapted:
    return Adapted(live, tmp_path)


def test_adapters_are_listed_with_their_scales(adapted: Adapted) -> None:
    listed = httpx2.get(adapted.server.url + "/lora-adapters").json()
    assert listed == [
        {"id": 0, "path": str(adapted.a), "scale": 1.0, "task_name": "", "prompt_prefix": ""},
        {"id": 1, "path": str(adapted.b), "scale": 0.5, "task_name": "", "prompt_prefix": ""},
    ]


def test_scales_that_are_not_named_drop_to_zero_and_unknown_ids_are_ignored(adapted: Adapted) -> None:
    answer = adapted.set([{"id": 1, "scale": 0.25}, {"id": 7, "scale": 1}])
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    assert adapted.scales() == [0.0, 0.25]
    adapted.set([])
    assert adapted.scales() == [0.0, 0.0]


@pytest.mark.parametrize("body", [{"id": 0, "scale": 1}, [{"id": 0}], [{"id": "0", "scale": 1}], [{"id": -1, "scale": 1}]])
def test_malformed_scales_change_nothing(adapted: Adapted, body: object) -> None:
    answer = adapted.set(body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert adapted.scales() == [1.0, 0.5]


def test_live_scales_and_those_of_one_request_give_the_same_answer(adapted: Adapted) -> None:
    first = adapted.complete()
    assert first["generation_settings"]["lora"] == [{"id": 0, "scale": 1.0}, {"id": 1, "scale": 0.5}]
    only_b = adapted.complete(lora=[{"id": 1, "scale": 1.5}])
    assert only_b["generation_settings"]["lora"] == [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 1.5}]
    adapted.set([{"id": 1, "scale": 1.5}])
    assert adapted.complete()["content"] == only_b["content"]
    plain = adapted.complete(lora=[])
    assert len({first["content"], only_b["content"], plain["content"]}) == 3


def test_the_prompt_cache_keeps_scales_apart(adapted: Adapted) -> None:
    scales: list[list[dict[str, float]]] = [[], [{"id": 0, "scale": 1.0}], [{"id": 0, "scale": 2.0}]]
    cold = [adapted.complete(lora=chosen) for chosen in scales]
    warm = [adapted.complete(lora=chosen) for chosen in scales]
    assert all(answer["tokens_cached"] == 0 for answer in cold)
    assert all(answer["tokens_cached"] > 0 for answer in warm)
    assert [answer["content"] for answer in warm] == [answer["content"] for answer in cold]


def test_a_batch_of_different_scales_answers_as_each_alone(adapted: Adapted) -> None:
    scales = [[], [{"id": 0, "scale": 1.0}], [{"id": 1, "scale": 1.0}], [{"id": 0, "scale": 1.0}, {"id": 1, "scale": -1.0}]]
    alone = [adapted.complete(lora=chosen, cache_prompt=False)["content"] for chosen in scales]
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(adapted.complete, lora=chosen, cache_prompt=False) for chosen in scales]
        together = [answer.result()["content"] for answer in running]
    assert together == alone
    assert len(set(alone)) == 4


def test_adapters_may_start_without_being_applied(live: Live, tmp_path: Path) -> None:
    adapted = Adapted(live, tmp_path, "--lora-init-without-apply")
    assert adapted.scales() == [0.0, 0.0]


def test_chat_takes_the_live_scales(adapted: Adapted) -> None:
    def chat() -> object:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12, "temperature": 0}
        answer = httpx2.post(adapted.server.url + "/v1/chat/completions", json=body, timeout=60)
        return answer.json()["choices"][0]["message"]

    before = chat()
    adapted.set([])
    assert chat() != before


@pytest.mark.parametrize("scaled", ["nan", "inf", "much", ""])
def test_a_bad_scale_fails_the_start(tmp_path: Path, scaled: str) -> None:
    with pytest.raises(StartupError, match="--lora-scaled"):
        checkpoint_source(write_tiny_checkpoint("llama", tmp_path), parse(["--lora-scaled", f"x:{scaled}"]))


def test_without_adapters_the_list_is_empty(live: Live, tmp_path: Path) -> None:
    server = live(scripted_source("hi", tmp_path))
    assert httpx2.get(server.url + "/lora-adapters").json() == []
    assert httpx2.post(server.url + "/lora-adapters", json=[{"id": 0, "scale": 1}]).json() == {"success": True}
    answer = httpx2.post(server.url + "/completion", json={"prompt": "Hi", "lora": [{"id": 0, "scale": 1}]})
    assert answer.json()["content"] == "hi"

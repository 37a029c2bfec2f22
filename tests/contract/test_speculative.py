"""Speculative decoding as clients and operators see it."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mlxcel.app import open_source
from mlxcel.app.settings import draft_tokens, prompt_lookup, uses_draft_model
from mlxcel.config.model import ModelConfig
from mlxcel.config.network import EndpointConfig, NetworkConfig
from mlxcel.config.server import ServerConfig
from mlxcel.config.speculative import SpeculativeConfig, parse_block_size, parse_draft_kind, parse_spec_type
from mlxcel.core.errors import StartupError
from mlxcel.engine.stats import Drafting, EngineCounters, make_stats
from mlxcel.testing.app import LiveServer, scripted_source
from mlxcel.testing.tiny_models import write_tiny_checkpoint
from mlxcel.wire.draft_policy import render_draft_policy

Live = Callable[..., LiveServer]
TEXT = "The river runs past the old mill, and the old mill stands beside the river. "
DRAFT_FIELDS = ("draft_n", "draft_n_accepted", "draft_rounds", "draft_kind")
POLICY_KEYS = {
    "schema_version", "state", "reason", "verdict", "mtp_enabled", "target", "drafter", "hardware", "block_size",
    "acceptance_rate", "samples", "samples_required", "samples_remaining",
}  # fmt: skip


@pytest.fixture
def repeating(live: Live, tmp_path: Path) -> LiveServer:
    return live(scripted_source(TEXT * 4, tmp_path, step_s=0.002), ServerConfig(endpoints=EndpointConfig(metrics=True)))


def post(server: LiveServer, path: str, **body: Any) -> httpx2.Response:
    response = httpx2.post(server.url + path, json=body, timeout=30)
    assert response.status_code == 200, response.text
    return response


def chat(server: LiveServer, **body: Any) -> httpx2.Response:
    return post(server, "/v1/chat/completions", messages=[{"role": "user", "content": TEXT}], **body)


def frames(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def assert_drafted(timings: dict[str, Any], kind: str = "prompt-lookup") -> None:
    assert timings["draft_kind"] == kind
    assert timings["draft_n"] >= timings["draft_n_accepted"] > 0
    assert timings["draft_rounds"] > 0
    assert timings["predicted_n"] > timings["draft_n_accepted"]


def test_a_chat_answer_tells_about_its_drafts(repeating: LiveServer) -> None:
    body = chat(repeating).json()
    assert body["choices"][0]["message"]["content"].strip() == (TEXT * 4).strip()
    assert_drafted(body["timings"])


@pytest.mark.parametrize("include_usage", [False, True])
def test_only_the_finish_chunk_of_a_stream_tells_about_drafts(repeating: LiveServer, include_usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    with_timings = [frame for frame in frames(chat(repeating, stream=True, **options).text) if "timings" in frame]
    assert [frame["choices"][0]["finish_reason"] for frame in with_timings] == ["stop"]
    assert_drafted(with_timings[0]["timings"])


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_the_native_routes_append_the_four_fields(repeating: LiveServer, path: str) -> None:
    timings = post(repeating, path, prompt=TEXT).json()["timings"]
    assert tuple(timings)[-4:] == DRAFT_FIELDS
    assert_drafted(timings)
    *partial, last = frames(post(repeating, path, prompt=TEXT, stream=True, timings_per_token=True).text)
    assert_drafted(last["timings"])
    assert not any(name in frame["timings"] for frame in partial for name in DRAFT_FIELDS)


def test_plain_answers_have_no_draft_fields(live: Live, tmp_path: Path) -> None:
    config = ServerConfig(speculative=SpeculativeConfig(prompt_lookup="off"))
    server = live(scripted_source(TEXT * 4, tmp_path), config)
    assert "timings" not in chat(server).json()
    assert "timings" not in chat(server, stream=True).text
    assert not set(DRAFT_FIELDS) & set(post(server, "/completion", prompt=TEXT).json()["timings"])


def test_an_answer_that_ends_in_prefill_has_none_either(repeating: LiveServer) -> None:
    assert "timings" not in chat(repeating, max_tokens=1).json()


def test_metrics_count_drafts(repeating: LiveServer) -> None:
    chat(repeating)
    lines = dict(line.rsplit(" ", 1) for line in httpx2.get(repeating.url + "/metrics").text.splitlines() if line[:1] != "#")
    drafted, accepted = lines["mlxcel_draft_tokens_total"], lines["mlxcel_draft_tokens_accepted_total"]
    assert float(drafted) >= float(accepted) > 0


def test_the_policy_of_a_server_without_a_draft_model(repeating: LiveServer) -> None:
    body = httpx2.get(repeating.url + "/v1/internal/mtp-policy").json()
    assert set(body) == POLICY_KEYS
    assert (body["schema_version"], body["state"], body["reason"]) == (1, "unavailable", "no_mtp_dispatch")
    assert (body["verdict"], body["mtp_enabled"]) == (None, False)
    assert (body["target"], body["drafter"]) == ("scripted", None)
    assert (body["samples"], body["samples_required"], body["samples_remaining"]) == (0, 4, 4)


def test_the_policy_needs_a_key_and_has_no_alias(live: Live, tmp_path: Path) -> None:
    server = live(scripted_source(TEXT, tmp_path), ServerConfig(network=NetworkConfig(api_keys=("secret",))))
    assert httpx2.get(server.url + "/v1/internal/mtp-policy").status_code == 401
    headers = {"authorization": "Bearer secret"}
    assert httpx2.get(server.url + "/v1/internal/mtp-policy", headers=headers).status_code == 200
    assert httpx2.get(server.url + "/internal/mtp-policy", headers=headers).status_code == 404


# ---- a draft model ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("draft")
    return {
        "target": write_tiny_checkpoint("llama", root / "target"),
        "draft": write_tiny_checkpoint("llama", root / "draft"),
    }


def config_of(folders: dict[str, Path], draft: str | None, **fields: Any) -> ServerConfig:
    model = ModelConfig(model=str(folders["target"]), dtype="fp32")
    named = "" if draft is None else str(folders[draft])
    return ServerConfig(model=model, speculative=SpeculativeConfig(draft_model=named, **fields))


def test_a_draft_model_serves_the_same_text_and_is_profiled(live: Live, folders: dict[str, Path]) -> None:
    body = {"prompt": "The old mill", "temperature": 0, "n_predict": 24, "ignore_eos": True}
    config = config_of(folders, None, prompt_lookup="off")
    plain = post(live(open_source(config), config), "/completion", **body).json()
    config = config_of(folders, "draft")
    server = live(open_source(config), config)
    before = httpx2.get(server.url + "/v1/internal/mtp-policy").json()
    drafted = post(server, "/completion", **body).json()
    assert drafted["content"] == plain["content"]
    assert_drafted(drafted["timings"], "draft-model")
    policy = httpx2.get(server.url + "/v1/internal/mtp-policy").json()
    assert set(before) == set(policy) == POLICY_KEYS
    assert (before["state"], before["samples"], before["acceptance_rate"]) == ("profiling", 0, None)
    assert (policy["state"], policy["samples"], policy["samples_remaining"]) == ("profiling", 1, 3)
    assert (policy["drafter"], policy["block_size"], policy["verdict"]) == ("draft", 5, None)
    assert policy["acceptance_rate"] > 0.5
    for _ in range(2):  # whether it goes on drafting depends on the machine; the text does not
        assert post(server, "/completion", **body).json()["content"] == plain["content"]


@pytest.mark.parametrize(("pays", "verdict"), [(True, "enable"), (False, "decline")])
def test_the_policy_settles_after_four_requests(pays: bool, verdict: str) -> None:
    counters = EngineCounters(drafted_tokens=10, accepted_tokens=4, drafted_works=9)
    stats = make_stats(counters, [], drafting=Drafting("draft-model", 4, pays))
    body = render_draft_policy("big", "small", stats)
    assert (body["state"], body["verdict"], body["mtp_enabled"], body["samples"]) == ("settled", verdict, pays, 4)
    assert (body["acceptance_rate"], body["reason"]) == (0.4, None)


def test_the_policy_of_a_model_that_loads_or_sleeps() -> None:
    for stats in (None, make_stats(EngineCounters(drafted_works=9), [])):
        body = render_draft_policy("big", "small", stats)
        assert (body["state"], body["reason"], body["verdict"]) == ("unavailable", "worker_not_ready", None)


def test_a_model_with_another_vocabulary_is_refused_in_one_line(folders: dict[str, Path], tmp_path: Path) -> None:
    other = write_tiny_checkpoint("llama", tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = tokenizer["model"]["vocab"]
    first, second = [word for word in vocab if word.isalpha()][:2]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(StartupError, match=r"--draft-model .*vocabulary is not the served model's \(token \d+") as caught:
        open_source(config_of({**folders, "other": other}, "other"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "lookup", "loads"),
    [
        ({}, None, False),
        ({"prompt_lookup": "on"}, True, False),
        ({"prompt_lookup": "off"}, False, False),
        ({"spec_type": "none", "draft_model": "m"}, False, False),
        ({"spec_type": "prompt-lookup", "draft_model": "m"}, True, False),
        ({"draft_model": "m"}, None, True),
        ({"spec_type": "draft-model", "draft_model": "m"}, False, True),
    ],
)
def test_options_choose_one_drafter(fields: dict[str, Any], lookup: bool | None, loads: bool) -> None:
    config = dataclasses.replace(SpeculativeConfig(), **fields)
    assert (prompt_lookup(config), uses_draft_model(config)) == (lookup, loads)


def test_contradicting_options_are_refused() -> None:
    with pytest.raises(StartupError, match="exclude each other"):
        uses_draft_model(SpeculativeConfig(draft_model="m", prompt_lookup="on"))
    with pytest.raises(StartupError, match="name the model with --draft-model"):
        uses_draft_model(SpeculativeConfig(spec_type="draft-model"))
    for parse, text in ((parse_draft_kind, "mtp"), (parse_spec_type, "draft-dflash"), (parse_block_size, "1")):
        with pytest.raises(ValueError, match=r"served|at least 2"):
            parse(text)


def test_the_smaller_limit_holds() -> None:
    sizes = [(0, 0, 0), (5, 0, 5), (0, 5, 4), (3, 9, 3), (9, 3, 2)]
    assert [draft_tokens(SpeculativeConfig(draft_max=most, draft_block_size=block)) for most, block, _ in sizes] == [
        tokens for *_, tokens in sizes
    ]


def test_a_client_that_leaves_inside_a_burst_frees_its_slot(live: Live, tmp_path: Path) -> None:
    server = live(scripted_source(TEXT * 400, tmp_path, step_s=0.002), ServerConfig())
    body = {"messages": [{"role": "user", "content": TEXT}], "stream": True}
    with httpx2.stream("POST", server.url + "/v1/chat/completions", json=body, timeout=30) as response:
        for place, _ in enumerate(response.iter_lines()):
            if place > 20:
                break
    for _ in range(300):
        batch = httpx2.get(server.url + "/health").json()["batch"]
        if batch["active_sequences"] == 0:
            break
        time.sleep(0.01)
    assert batch["active_sequences"] == 0
    assert chat(server, max_tokens=40).json()["usage"]["completion_tokens"] == 40


def test_a_stop_string_inside_a_burst_cuts_the_text_there(live: Live, tmp_path: Path) -> None:
    for lookup in ("off", "auto"):
        folder = tmp_path / lookup
        config = ServerConfig(speculative=SpeculativeConfig(prompt_lookup=lookup))
        server = live(scripted_source(TEXT * 4, folder, step_s=0.002), config)
        body = chat(server, stop=["stands"]).json()
        assert body["choices"][0]["message"]["content"].strip() == "The river runs past the old mill, and the old mill"
        chunks = frames(chat(server, stream=True, stop=["stands"]).text)
        streamed = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
        assert streamed == body["choices"][0]["message"]["content"]

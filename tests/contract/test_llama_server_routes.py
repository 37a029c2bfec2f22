"""llama-server's native routes over a real socket: shapes, domains and exact messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mlxcel.config.network import EndpointConfig
from mlxcel.config.server import ServerConfig
from mlxcel.testing.app import LiveServer, scripted_source

Live = Callable[..., LiveServer]
ANSWER = "The river runs past\nthe old mill."
KEYS = [
    "index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated", "generation_settings",
    "prompt", "has_new_line", "truncated", "stop_type", "stopping_word", "tokens_cached", "timings",
]  # fmt: skip


@pytest.fixture
def server(live: Live, tmp_path: Path) -> LiveServer:
    return live(scripted_source(ANSWER, tmp_path), ServerConfig(endpoints=EndpointConfig(metrics=True, props=True)))


def post(server: LiveServer, path: str, **body: Any) -> httpx2.Response:
    return httpx2.post(server.url + path, json=body, timeout=30)


def frames(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_the_whole_object_has_its_keys_in_order(server: LiveServer, path: str) -> None:
    body = post(server, path, prompt="Tell me").json()
    assert list(body) == KEYS
    assert body["content"] == ANSWER
    assert body["stop"] is True
    assert body["stop_type"] == "eos"
    assert body["has_new_line"] is True
    assert body["prompt"] == "Tell me"
    assert list(body["timings"]) == [
        "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second",
        "predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second",
    ]  # fmt: skip
    assert body["timings"]["prompt_n"] == body["tokens_evaluated"]


def test_a_stream_ends_with_the_full_object_and_no_end_marker(server: LiveServer) -> None:
    text = post(server, "/completion", prompt="Tell me", stream=True).text
    assert "[DONE]" not in text
    *partial, last = frames(text)
    assert "".join(frame["content"] for frame in partial) == ANSWER
    assert all(frame["stop"] is False for frame in partial)
    assert list(last) == KEYS
    assert last["content"] == ""


@pytest.mark.parametrize(("limit", "tokens"), [(0, 1), (1, 1), (3, 3)])
@pytest.mark.parametrize("name", ["n_predict", "max_tokens", "max_completion_tokens"])
def test_the_limit_counts_and_zero_yields_one(server: LiveServer, name: str, limit: int, tokens: int) -> None:
    body = post(server, "/completion", prompt="Tell me", **{name: limit}).json()
    assert body["tokens_predicted"] == tokens
    assert body["stop_type"] == "limit"


def test_a_limit_of_minus_one_goes_to_the_end(server: LiveServer) -> None:
    assert post(server, "/completion", prompt="Tell me", n_predict=-1).json()["content"] == ANSWER


@pytest.mark.parametrize("value", [-2, 2**31])
def test_a_limit_out_of_range_has_the_documented_message(server: LiveServer, value: int) -> None:
    answer = post(server, "/completion", prompt="Tell me", n_predict=value)
    assert answer.status_code == 400
    wanted = f"Field 'n_predict': Value must be between -1 <= value <= 2147483647, but got {value}"
    assert answer.json()["error"]["message"] == wanted


def test_stop_words_are_reported(server: LiveServer) -> None:
    body = post(server, "/completion", prompt="Tell me", stop=["the old", "never"]).json()
    assert body["content"] == "The river runs past\n"
    assert body["stop_type"] == "word"
    assert body["stopping_word"] == "the old"


def test_response_fields_are_paths(server: LiveServer) -> None:
    wanted = ["content", "generation_settings/top_k", "nowhere/at_all"]
    assert post(server, "/completion", prompt="Hi", response_fields=wanted, top_k=7).json() == {
        "content": ANSWER,
        "generation_settings/top_k": 7,
    }
    assert list(post(server, "/completion", prompt="Hi", response_fields="content").json()) == KEYS
    *partial, last = frames(post(server, "/completion", prompt="Hi", response_fields=["stop_type"], stream=True).text)
    assert last == {"stop_type": "eos"}
    assert all("content" in frame for frame in partial)


def test_timings_come_with_each_frame_when_asked_for(server: LiveServer) -> None:
    *partial, _ = frames(post(server, "/completion", prompt="Hi", stream=True, timings_per_token=True).text)
    assert all(frame["timings"]["prompt_n"] > 0 for frame in partial)
    assert "timings" not in frames(post(server, "/completion", prompt="Hi", stream=True).text)[0]


def test_probabilities_come_one_a_token(server: LiveServer) -> None:
    body = post(server, "/completion", prompt="Hi", n_probs=2).json()
    assert len(body["completion_probabilities"]) == body["tokens_predicted"] - 1  # the end of the turn shows no text
    assert set(body["completion_probabilities"][0]) == {"id", "token", "bytes", "logprob", "top_logprobs"}


@pytest.mark.parametrize(
    "field", [{"n": 2}, {"n_cmpl": 2}, {"n_indent": 3}, {"t_max_predict_ms": 5}, {"return_progress": True},
              {"verbose": True}, {"return_tokens": True}, {"response_format": {"type": "json_object"}}]
)  # fmt: skip
def test_fields_that_are_not_served_are_named(server: LiveServer, field: dict[str, Any]) -> None:
    answer = post(server, "/completion", prompt="Hi", **field)
    assert answer.status_code == 400
    assert next(iter(field)) in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "field", [{"n": 1}, {"n_indent": 0}, {"t_max_predict_ms": -1}, {"response_format": {"type": "text"}}, {"typical_p": 7},
              {"top_n_sigma": -1}, {"stream_options": "ignored"}, {"seed": -5}]
)  # fmt: skip
def test_values_that_change_nothing_are_accepted(server: LiveServer, field: dict[str, Any]) -> None:
    assert post(server, "/completion", prompt="Hi", **field).status_code == 200


def test_the_type_of_include_usage_is_checked(server: LiveServer) -> None:
    answer = post(server, "/completion", prompt="Hi", stream_options={"include_usage": "yes"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "Field 'include_usage': type must be boolean, but is string"


def test_prompts_may_be_ids_or_mixed(server: LiveServer) -> None:
    ids = post(server, "/tokenize", content="Tell me").json()["tokens"]
    plain = post(server, "/completion", prompt="Tell me").json()
    assert post(server, "/completion", prompt=ids).json()["tokens_evaluated"] == plain["tokens_evaluated"]
    assert post(server, "/completion", prompt=["Tell", *ids]).json()["tokens_evaluated"] > len(ids)
    assert post(server, "/completion", prompt=[10**6]).status_code == 400
    assert post(server, "/completion", prompt=[]).status_code == 400
    assert post(server, "/completion").status_code == 400


def test_tokenize_and_detokenize_are_inverse(server: LiveServer) -> None:
    text = "héllo 東京 👩‍👩‍👧‍👦"
    ids = post(server, "/tokenize", content=text).json()["tokens"]
    assert post(server, "/detokenize", tokens=ids).json() == {"content": text}
    assert post(server, "/tokenize").json() == {"tokens": []}
    assert post(server, "/detokenize").json() == {"content": ""}
    assert post(server, "/detokenize", tokens=[]).json() == {"content": ""}
    assert post(server, "/tokenize", content=["a", 5, "b"]).json()["tokens"][1] == 5


def test_pieces_are_text_or_bytes(server: LiveServer) -> None:
    pieces = post(server, "/tokenize", content="a 東", with_pieces=True).json()["tokens"]
    raw = b"".join(piece["piece"].encode() if isinstance(piece["piece"], str) else bytes(piece["piece"]) for piece in pieces)
    assert raw.decode() == "a 東"
    assert any(isinstance(piece["piece"], list) for piece in pieces)


@pytest.mark.parametrize("bad", [-1, 10**6, 2**40, -(2**40)])
def test_detokenize_names_the_first_bad_id(server: LiveServer, bad: int) -> None:
    answer = post(server, "/detokenize", tokens=[5, bad, -7])
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert error["type"] == "server_error"
    assert error["message"] == f"token id {bad} is out of vocabulary range (vocab_size 512)"


def test_special_spellings_are_parsed_unless_switched_off(server: LiveServer) -> None:
    assert len(post(server, "/tokenize", content="<|im_end|>").json()["tokens"]) == 1
    assert len(post(server, "/tokenize", content="<|im_end|>", parse_special=False).json()["tokens"]) > 1


def test_the_template_and_its_token_count(server: LiveServer) -> None:
    chat = {"messages": [{"role": "user", "content": "Hello"}]}
    prompt = post(server, "/apply-template", **chat).json()["prompt"]
    assert "Hello" in prompt
    count = post(server, "/v1/chat/completions/input_tokens", **chat).json()["input_tokens"]
    assert count == len(post(server, "/tokenize", content=prompt).json()["tokens"])


def test_infill_puts_the_gap_last(server: LiveServer) -> None:
    body = post(server, "/infill", input_prefix="def f():", input_suffix="return x", prompt=" x =").json()
    assert body["prompt"] == "<|fim_prefix|>def f(): x =<|fim_suffix|>return x<|fim_middle|>"
    assert body["content"] == ANSWER


def test_infill_refuses_the_models_own_markers(server: LiveServer) -> None:
    answer = post(server, "/infill", input_prefix="a", input_suffix="<|fim_middle|>")
    assert answer.status_code == 400
    assert "input_suffix" in answer.json()["error"]["message"]
    assert "<|fim_middle|>" in answer.json()["error"]["message"]


def test_props_and_slots(server: LiveServer) -> None:
    props = httpx2.get(server.url + "/props").json()
    assert list(props)[:2] == ["default_generation_settings", "total_slots"]
    assert list(props["default_generation_settings"]) == [
        "n_predict", "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "seed",
        "frequency_penalty", "presence_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
    ]  # fmt: skip
    assert props["default_generation_settings"]["seed"] == 18446744073709551615
    assert props["total_slots"] == 4
    assert post(server, "/props").json() == {"success": True}
    slots = httpx2.get(server.url + "/slots").json()
    assert [slot["id"] for slot in slots] == [0, 1, 2, 3]
    assert {slot["state"] for slot in slots} == {"idle"}


def test_optional_routes_are_off_by_default(live: Live, tmp_path: Path) -> None:
    server = live(scripted_source(ANSWER, tmp_path), ServerConfig(endpoints=EndpointConfig(slots=False)))
    assert httpx2.get(server.url + "/metrics").status_code == 404
    assert httpx2.get(server.url + "/slots").status_code == 501
    assert post(server, "/props").status_code == 501
    for path in ("/tools", "/cors-proxy"):
        for method in ("GET", "POST"):
            answer = httpx2.request(method, server.url + path)
            assert answer.status_code == 403
            assert answer.json()["error"]["type"] == "feature_disabled"


def test_metrics_count_what_the_reference_counts(server: LiveServer) -> None:
    chat = {"messages": [{"role": "user", "content": "Hello"}]}
    post(server, "/v1/chat/completions", **chat)
    post(server, "/v1/chat/completions", **chat, stream=True)
    post(server, "/v1/completions", prompt="Hi")
    post(server, "/v1/completions", prompt="Hi", stream=True)  # not counted
    post(server, "/completion", prompt="Hi")  # not counted
    text = httpx2.get(server.url + "/metrics").text
    assert "# TYPE mlxcel_requests_total counter\nmlxcel_requests_total 3\n" in text
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }
    assert samples["mlxcel_slots_total"] == samples["mlxcel_slots_available"] == 4
    assert "\nmlxcel_batch_sequences_completed 5\n" in text
    assert samples["mlxcel_request_seconds_count"] == 5

"""What the operator decides for every request: constraints, loops, memory of a request, and what ends an infill."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mlxcel.app import Source, build_app
from mlxcel.cli.serve import parse
from mlxcel.config.server import ServerConfig
from mlxcel.core.errors import StartupError
from mlxcel.testing.app import LiveServer, scripted_source
from mlxcel.testing.scripted_runner import SCRIPTED_MODEL, ScriptedRunner
from mlxcel.testing.tiny_tokenizer import build_tiny_tokenizer
from mlxcel.text.tokenizer import load_tokenizer

Live = Callable[..., LiveServer]
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
LOOPING = "the mill " * 60


def config(*flags: str) -> ServerConfig:
    return parse([*flags, "--reasoning", "off"])


def post(server: LiveServer, path: str, **body: Any) -> httpx2.Response:
    return httpx2.post(server.url + path, json=body, timeout=30)


def texts(server: LiveServer) -> list[str]:
    """The same prompt's answer on every surface."""
    chat = post(server, "/v1/chat/completions", **CHAT).json()["choices"][0]["message"]["content"]
    completion = post(server, "/v1/completions", prompt="Hi").json()["choices"][0]["text"]
    native = post(server, "/completion", prompt="Hi").json()["content"]
    response = post(server, "/v1/responses", model="m", input="Hi").json()["output"][-1]["content"][0]["text"]
    message = post(server, "/v1/messages", model="m", max_tokens=99, **CHAT).json()["content"][-1]["text"]
    return [chat, completion, native, response, message]


def test_a_grammar_holds_on_every_surface(live: Live, tmp_path: Path) -> None:
    server = live(scripted_source("no idea", tmp_path), config("--grammar", 'root ::= "yes"'))
    assert texts(server) == ["yes"] * 5


def test_a_grammar_file_and_a_schema_do_too(live: Live, tmp_path: Path) -> None:
    (tmp_path / "rule.gbnf").write_text('root ::= "left" | "right"')
    server = live(scripted_source("right", tmp_path), config("--grammar-file", str(tmp_path / "rule.gbnf")))
    assert texts(server) == ["right"] * 5
    (tmp_path / "schema.json").write_text('{"enum": ["a", "b"]}')
    server = live(scripted_source('"b"', tmp_path), config("-jf", str(tmp_path / "schema.json")))
    assert [json.loads(text) for text in texts(server)] == ["b"] * 5


def test_the_requests_own_format_wins(live: Live, tmp_path: Path) -> None:
    server = live(scripted_source("no", tmp_path), config("--grammar", 'root ::= "yes"'))
    assert post(server, "/completion", prompt="Hi", grammar='root ::= "no"').json()["content"] == "no"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--grammar", "root ::= ("], "--grammar"),
        (["--json-schema", "[]"], "--json-schema: expected a JSON object"),
        (["--json-schema", '{"type": "nothing"}'], "--json-schema"),
        (["--json-schema-file", "/nowhere.json"], "--json-schema-file: cannot read /nowhere.json"),
        (["--json-schema", "{}", "--grammar", 'root ::= "a"'], "give one of them"),
    ],
)
def test_what_cannot_be_enforced_fails_the_start(tmp_path: Path, flags: list[str], told: str) -> None:
    with pytest.raises(StartupError) as failure:
        build_app(config(*flags), scripted_source("hi", tmp_path))
    assert told in failure.value.message


def test_loops_end_every_surface_when_the_operator_says_so(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLXCEL_LOOP_DETECTION", "1,8,4")
    server = live(scripted_source(LOOPING, tmp_path), config())
    assert all(len(text) < len(LOOPING) / 2 for text in texts(server))
    stopped = post(server, "/v1/chat/completions", **CHAT).json()["choices"][0]
    assert stopped["finish_reason"] == "stop"
    kept = post(server, "/v1/chat/completions", **CHAT, max_pattern_size=0).json()["choices"][0]
    assert kept["message"]["content"] == LOOPING


def test_loops_are_left_alone_by_default_and_for_a_malformed_policy(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLXCEL_LOOP_DETECTION", "often")
    server = live(scripted_source(LOOPING, tmp_path), config())
    assert post(server, "/completion", prompt="Hi").json()["content"] == LOOPING


def test_gemma_4_detects_loops_unasked(live: Live, tmp_path: Path) -> None:
    plain = scripted_source(LOOPING, tmp_path)
    gemma = Source("g", ("g",), plain.tokenizer, "gemma4_text", plain.window_tokens, {}, plain.build)
    assert len(post(live(gemma), "/completion", prompt="Hi").json()["content"]) < len(LOOPING) / 2


def test_a_request_beyond_its_memory_budget_is_refused(live: Live, tmp_path: Path) -> None:
    budget = str(SCRIPTED_MODEL.bytes_per_token * 100)
    server = live(scripted_source("hi", tmp_path), config("--request-memory-budget", budget))
    refused = post(server, "/completion", prompt="Hi", n_predict=200)
    assert (refused.status_code, refused.json()["error"]["type"]) == (503, "request_memory_budget_exceeded")
    assert post(server, "/completion", prompt="Hi", n_predict=20).status_code == 200


def test_an_infill_ends_at_the_markers_of_other_files(live: Live, tmp_path: Path) -> None:
    made = build_tiny_tokenizer()
    made.add_special_tokens({"additional_special_tokens": ["<|file_sep|>"]})
    made.save_pretrained(tmp_path, save_jinja_files=False)
    tokenizer = load_tokenizer(tmp_path)
    separator = tokenizer.token_id("<|file_sep|>")
    if separator is None:
        raise ValueError("the marker was not added")
    said = [*tokenizer.encode("return 1"), separator, *tokenizer.encode("other")]
    info = SCRIPTED_MODEL

    def build() -> ScriptedRunner:
        return ScriptedRunner(lambda prompt: said, info=info, end_id=min(tokenizer.eos_ids))

    server = live(Source("s", ("s",), tokenizer, "scripted", info.context_tokens, {}, build))
    filled = post(server, "/infill", input_prefix="def f():", input_suffix="\n").json()
    assert (filled["content"], filled["stop_type"]) == ("return 1", "eos")
    assert "other" in post(server, "/completion", prompt="def f():").json()["content"]

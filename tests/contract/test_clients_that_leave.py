"""A client that leaves frees its slot, wherever its request is, streamed or not; neighbours go on."""

from __future__ import annotations

import dataclasses
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from mlxcel.config.scheduling import SchedulingConfig
from mlxcel.config.server import ServerConfig
from mlxcel.testing.app import LiveServer, scripted_source

Live = Callable[..., LiveServer]

ROUTES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}]},
    "/v1/completions": {"prompt": "Hello"},
    "/completion": {"prompt": "Hello"},
    "/v1/responses": {"model": "any", "input": "Hello"},
    "/v1/messages": {"model": "any", "max_tokens": 4096, "messages": [{"role": "user", "content": "Hello"}]},
}


def send(server: LiveServer, path: str, body: dict[str, object]) -> socket.socket:
    """Send a request and leave the answer unread."""
    connection = socket.create_connection(("127.0.0.1", server.port))
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
    return connection


def batch(server: LiveServer) -> dict[str, int]:
    found: dict[str, int] = httpx2.get(server.url + "/health").json()["batch"]
    return found


def wait_for(server: LiveServer, *, active: int, queued: int, limit_s: float = 5.0) -> None:
    deadline_s = time.monotonic() + limit_s
    state = batch(server)
    while (state["active_sequences"], state["queue_depth"]) != (active, queued) and time.monotonic() < deadline_s:
        time.sleep(0.01)
        state = batch(server)
    assert (state["active_sequences"], state["queue_depth"]) == (active, queued)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_leaving_while_running_frees_the_slot(live: Live, tmp_path: Path, path: str, stream: bool, stage: str) -> None:
    step_s, prefill_token_s = (0.02, 0.0) if stage == "decode" else (0.001, 0.02)
    server = live(scripted_source("word " * 400, tmp_path, step_s=step_s, prefill_token_s=prefill_token_s))
    connection = send(server, path, ROUTES[path] | {"stream": stream})
    wait_for(server, active=1, queued=0)
    connection.close()
    wait_for(server, active=0, queued=0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stage", ["summary", "answer"])
def test_leaving_a_compaction_frees_the_slot(live: Live, tmp_path: Path, stage: str, stream: bool) -> None:
    def say(prompt: str) -> str:
        return "short" if "<conversation>" in prompt and stage == "answer" else "word " * 400

    server = live(scripted_source(say, tmp_path, step_s=0.01))
    turns = [{"role": role, "content": "the stones are still " * 12} for _ in range(12) for role in ("user", "assistant")]
    body: dict[str, object] = {
        "model": "any",
        "input": [*turns, {"role": "user", "content": "latest"}],
        "context_management": [{"type": "compaction", "compact_threshold": 1}],
    }
    connection = send(server, "/v1/responses", body | {"stream": stream})
    wait_for(server, active=1, queued=0)
    time.sleep(0.3)
    assert batch(server)["active_sequences"] == 1
    connection.close()
    wait_for(server, active=0, queued=0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
def test_leaving_the_queue_gives_the_place_back(live: Live, tmp_path: Path, path: str, stream: bool) -> None:
    server = live(
        scripted_source("word " * 400, tmp_path, step_s=0.02), ServerConfig(scheduling=SchedulingConfig(parallel=1))
    )
    runs = send(server, path, ROUTES[path])
    wait_for(server, active=1, queued=0)
    waits = send(server, path, ROUTES[path] | {"stream": stream})
    wait_for(server, active=1, queued=1)
    waits.close()
    wait_for(server, active=1, queued=0)  # the neighbour goes on
    runs.close()
    wait_for(server, active=0, queued=0)


def test_a_full_queue_is_told_before_any_header(live: Live, tmp_path: Path) -> None:
    config = ServerConfig(scheduling=SchedulingConfig(parallel=1, max_queue_depth=1))
    server = live(scripted_source("word " * 400, tmp_path, step_s=0.02), config)
    first, second = (send(server, "/v1/chat/completions", ROUTES["/v1/chat/completions"]) for _ in range(2))
    wait_for(server, active=1, queued=1)
    for path, body in ROUTES.items():
        for stream in (False, True):
            answer = httpx2.post(server.url + path, json=body | {"stream": stream})
            assert answer.status_code == 503
            assert answer.json()["error"]["message"] == "All slots are busy. Please try again later."
            if path == "/v1/messages":
                assert answer.json()["error"]["type"] == "overloaded_error"
            else:
                assert answer.json()["error"]["type"] == "server_busy"
                assert answer.json()["error"]["code"] is None
    first.close()
    second.close()
    wait_for(server, active=0, queued=0)


def test_the_health_of_a_full_server_is_503(live: Live, tmp_path: Path) -> None:
    server = live(
        scripted_source("word " * 400, tmp_path, step_s=0.02), ServerConfig(scheduling=SchedulingConfig(parallel=1))
    )
    connection = send(server, "/completion", ROUTES["/completion"])
    wait_for(server, active=1, queued=0)
    answer = httpx2.get(server.url + "/health")
    assert answer.status_code == 503
    assert answer.json()["status"] == "no slot available"
    assert httpx2.head(server.url + "/").status_code == 503
    connection.close()


def test_keep_alives_fill_the_silence_of_a_long_prefill(live: Live, tmp_path: Path) -> None:
    config = ServerConfig()
    config = dataclasses.replace(config, network=dataclasses.replace(config.network, sse_ping_interval_s=0.1))
    server = live(scripted_source("done", tmp_path, prefill_token_s=0.02), config)
    started_s = time.monotonic()
    arrivals: list[tuple[float, bytes]] = []
    with httpx2.stream(
        "POST", server.url + "/v1/chat/completions", json=ROUTES["/v1/chat/completions"] | {"stream": True}
    ) as answer:
        headers_s = time.monotonic() - started_s
        arrivals += [(time.monotonic() - started_s, piece) for piece in answer.iter_raw()]
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in answer.headers
    first_text_s = next(moment for moment, piece in arrivals if b'"content"' in piece)
    assert headers_s < first_text_s / 2
    pings = [moment for moment, piece in arrivals if piece.startswith(b": ")]
    assert len(pings) >= 2
    assert max(pings) < first_text_s


def test_a_row_that_fails_ends_alone(live: Live, tmp_path: Path) -> None:
    def say(prompt: str) -> str | list[int | Exception]:
        return [300, 301, RuntimeError("secret detail")] if "break" in prompt else "fine " * 50

    server = live(scripted_source(say, tmp_path, step_s=0.002))
    with httpx2.stream("POST", server.url + "/v1/completions", json={"prompt": "go on", "stream": True}) as neighbour:
        broken = httpx2.post(server.url + "/v1/chat/completions", json={"messages": [{"role": "user", "content": "break"}]})
        text = neighbour.read().decode()
    assert broken.status_code == 500
    assert broken.json()["error"]["type"] == "server_error"
    assert "secret detail" not in broken.text
    assert '"finish_reason":"stop"' in text
    assert text.rstrip().endswith("data: [DONE]")


def test_a_row_that_fails_in_a_stream_ends_it_once(live: Live, tmp_path: Path) -> None:
    server = live(scripted_source(lambda prompt: [300, 301, RuntimeError("secret detail")], tmp_path))
    body = ROUTES["/v1/chat/completions"] | {"stream": True}
    text = httpx2.post(server.url + "/v1/chat/completions", json=body).text
    assert text.count('"finish_reason":"error"') == 1
    assert text.count('"error":{') == 1
    assert "secret detail" not in text
    assert text.rstrip().endswith("data: [DONE]")

"""Ending the thinking of an answer while it is being written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mlxcel.config.server import ServerConfig
from mlxcel.testing.app import LiveServer, scripted_source

Live = Callable[..., LiveServer]
THOUGHT = "I wonder about the mill. " * 60
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}


@pytest.fixture
def server(live: Live, tmp_path: Path) -> LiveServer:
    return live(scripted_source(f"<think>{THOUGHT}</think>Done.", tmp_path, step_s=0.005), ServerConfig())


def control(server: LiveServer, **body: Any) -> httpx2.Response:
    return httpx2.post(server.url + "/v1/chat/completions/control", json=body, timeout=30)


PATH = "/v1/chat/completions/control"


def stream_and_end(server: LiveServer, path: str = PATH, **fields: Any) -> tuple[str, dict[str, Any]]:
    """Stream an answer and end its thinking at the third thought: all thinking text, and what the control route said."""
    thoughts: list[str] = []
    said: dict[str, Any] = {}
    with httpx2.stream("POST", server.url + "/v1/chat/completions", json=CHAT | fields, timeout=60) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            thoughts += [choice["delta"].get("reasoning_content") or "" for choice in chunk["choices"]]
            if len(thoughts) > 3 and not said:
                body = {"id": chunk["id"], "action": "reasoning_end"}
                said = httpx2.post(server.url + path, json=body, timeout=30).json()
    return "".join(thoughts), said


@pytest.mark.parametrize("path", ["/v1/chat/completions/control", "/chat/completions/control"])
def test_thinking_ends_when_told(server: LiveServer, path: str) -> None:
    thought, said = stream_and_end(server, path, reasoning_control=True)
    assert said == {"success": True}
    assert 0 < len(thought) < len(THOUGHT) / 2


@pytest.mark.parametrize("fields", [{}, {"reasoning_control": False}])
def test_it_does_not_when_the_request_did_not_allow_it(server: LiveServer, fields: dict[str, Any]) -> None:
    thought, said = stream_and_end(server, **fields)
    assert said["success"] is False
    assert said["message"]
    assert thought.strip() == THOUGHT.strip()


def test_unknown_ids_are_told(server: LiveServer) -> None:
    answer = control(server, id="chatcmpl-none", action="reasoning_end")
    assert answer.status_code == 200
    assert answer.json()["success"] is False


@pytest.mark.parametrize(
    "body", [{"action": "reasoning_end"}, {"id": "chatcmpl-x"}, {"id": "x", "action": "stop"}, {"id": 3}]
)
def test_malformed_requests_are_400(server: LiveServer, body: dict[str, Any]) -> None:
    assert control(server, **body).status_code == 400

"""Streams with X-Conversation-Id survive their connection."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from mlxcel.config.network import NetworkConfig
from mlxcel.config.server import ServerConfig
from mlxcel.stores.streams import StreamOffsetLost, StreamSession, StreamStore
from mlxcel.testing.app import LiveServer, scripted_source

Live = Callable[..., LiveServer]
ANSWER = "one two three four five six seven eight nine ten " * 4
CHAT = {"messages": [{"role": "user", "content": "Count"}], "stream": True}


def start_and_leave(server: LiveServer, conversation: str, headers: dict[str, str] | None = None) -> bytes:
    """Read the beginning of a stream, then drop the connection."""
    headers = {"X-Conversation-Id": conversation} | (headers or {})
    with httpx2.stream("POST", server.url + "/v1/chat/completions", json=CHAT, headers=headers) as answer:
        return next(answer.iter_raw())


def test_a_client_that_left_comes_back_for_the_rest(live: Live, tmp_path: Path) -> None:
    server = live(scripted_source(ANSWER, tmp_path, step_s=0.005))
    head = start_and_leave(server, "talk-1")
    rest = httpx2.get(server.url + "/v1/stream", params={"conv_id": "talk-1", "from": len(head)}, timeout=30).content
    whole = httpx2.get(server.url + "/v1/stream", params={"conv_id": "talk-1"}, timeout=30).content
    assert head + rest == whole
    assert whole.rstrip().endswith(b"data: [DONE]")
    assert whole.count(b'"finish_reason":"stop"') == 1


def test_lookup_and_delete(live: Live, tmp_path: Path) -> None:
    server = live(scripted_source(ANSWER * 20, tmp_path, step_s=0.01))
    start_and_leave(server, "talk-2")
    found = httpx2.post(server.url + "/v1/streams/lookup", json={"conversation_ids": ["talk-2", "unknown"]}).json()
    assert [entry["conversation_id"] for entry in found] == ["talk-2"]
    assert found[0]["is_done"] is False
    assert found[0]["completed_at"] is None
    for _ in range(2):
        assert httpx2.delete(server.url + "/v1/stream", params={"conv_id": "talk-2"}).status_code == 204
    deadline_s = time.monotonic() + 5
    while httpx2.get(server.url + "/health").json()["batch"]["active_sequences"] and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert httpx2.get(server.url + "/health").json()["batch"]["active_sequences"] == 0
    assert httpx2.get(server.url + "/v1/stream", params={"conv_id": "talk-2"}).status_code == 404


def test_another_key_sees_nothing(live: Live, tmp_path: Path) -> None:
    server = live(scripted_source(ANSWER, tmp_path), ServerConfig(network=NetworkConfig(api_keys=("a", "b"))))
    start_and_leave(server, "mine", {"Authorization": "Bearer a"})
    theirs = {"Authorization": "Bearer b"}
    assert httpx2.get(server.url + "/v1/stream", params={"conv_id": "mine"}, headers=theirs).status_code == 404
    found = httpx2.post(server.url + "/v1/streams/lookup", json={"conversation_ids": ["mine"]}, headers=theirs)
    assert found.json() == []


@pytest.mark.parametrize("params", [{}, {"conv_id": " "}, {"conv_id": "x", "from": "-1"}, {"conv_id": "x", "from": "1e9"}])
def test_bad_queries_are_told(live: Live, tmp_path: Path, params: dict[str, str]) -> None:
    server = live(scripted_source(ANSWER, tmp_path))
    start_and_leave(server, "x")
    assert httpx2.get(server.url + "/v1/stream", params=params).status_code == 400


def test_an_offset_that_is_gone_has_the_documented_message(live: Live, tmp_path: Path) -> None:
    server = live(scripted_source(ANSWER, tmp_path))
    start_and_leave(server, "x")
    answer = httpx2.get(server.url + "/v1/stream", params={"conv_id": "x", "from": "99999999"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "Stream offset lost, please restart"


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
def test_the_other_streams_are_resumable_too(live: Live, tmp_path: Path, path: str) -> None:
    server = live(scripted_source(ANSWER, tmp_path))
    body = {"prompt": "Count", "stream": True}
    whole = httpx2.post(server.url + path, json=body, headers={"X-Conversation-Id": "c"}).content
    assert httpx2.get(server.url + "/v1/stream", params={"conv_id": "c"}).content == whole


def session_with(pieces: list[bytes], max_bytes: int) -> StreamSession:
    session = StreamSession("c", max_bytes=max_bytes)
    for piece in pieces:
        session.write(piece)
    return session


def test_the_oldest_bytes_go_first() -> None:
    session = session_with([b"abc", b"defg", b"hij"], max_bytes=5)
    assert session.total_bytes == 10
    session.check_offset(5)
    session.check_offset(10)
    for lost in (4, 11):
        with pytest.raises(StreamOffsetLost):
            session.check_offset(lost)


def test_finished_streams_are_kept_for_a_while_and_not_too_many() -> None:
    now_s = time.time()
    store = StreamStore(keep_finished_s=300, max_finished=2, clock=lambda: now_s)
    for name in ("a", "b", "c"):
        store.begin("", name).finish()
    running = store.begin("", "d")
    assert [status.conversation_id for status in store.lookup("", ["a", "b", "c", "d"])] == ["b", "c", "d"]
    now_s += 301
    assert [status.conversation_id for status in store.lookup("", ["a", "b", "c", "d"])] == ["d"]
    assert not running.is_done

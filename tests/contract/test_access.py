"""Who may call what: keys, hosts, origins, content types, and routes that do not exist."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from mlxcel.app import build_app
from mlxcel.config.network import NetworkConfig
from mlxcel.config.server import ServerConfig
from mlxcel.http.routes import all_routes
from mlxcel.testing.app import LiveServer, in_process, scripted_source

Live = Callable[..., LiveServer]
OPEN = {("GET", "/health"), ("GET", "/"), ("HEAD", "/health"), ("HEAD", "/")}
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def keyed(**network: object) -> ServerConfig:
    return ServerConfig(network=dataclasses.replace(NetworkConfig(api_keys=("sk-key",)), **network))  # type: ignore[arg-type]


async def test_every_route_but_two_needs_the_key(tmp_path: Path) -> None:
    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
    paths = {path.replace("{id}", "x") for route in all_routes() for path in route.paths}
    paths |= {"/openapi.json", "/docs", "/nowhere", "/v1", "/favicon.ico", "/health/"}
    async with in_process(build_app(keyed(), scripted_source("hi", tmp_path))) as client:
        for path in sorted(paths):
            for method in methods:
                for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer"}):
                    answer = await client.request(method, path, headers=headers)
                    wanted_open = (method, path) in OPEN
                    assert (answer.status_code != 401) == wanted_open, (method, path, headers)
                    if not wanted_open and method != "HEAD" and "Authorization" not in headers:
                        kind = answer.json()["error"]["type"]
                        assert kind in ("missing_api_key", "authentication_error")


@pytest.mark.parametrize("value", ["sk-key", "Bearer sk-key", "bearer sk-key", "BEARER  sk-key"])
async def test_the_key_comes_with_or_without_its_scheme(tmp_path: Path, value: str) -> None:
    async with in_process(build_app(keyed(), scripted_source("hi", tmp_path))) as client:
        assert (await client.get("/v1/models", headers={"Authorization": value})).status_code == 200


@pytest.mark.parametrize("query", ["?api_key=sk-key", "?key=sk-key"])
async def test_the_key_is_not_taken_from_the_query(tmp_path: Path, query: str) -> None:
    async with in_process(build_app(keyed(), scripted_source("hi", tmp_path))) as client:
        assert (await client.get("/v1/models" + query)).status_code == 401


async def test_x_api_key_counts_on_the_messages_routes_only(tmp_path: Path) -> None:
    async with in_process(build_app(keyed(), scripted_source("hi", tmp_path))) as client:
        headers = {"x-api-key": "sk-key"}
        body = CHAT | {"max_tokens": 5, "model": "m"}
        for path in ("/v1/messages", "/messages", "/v1/messages/count_tokens", "/messages/count_tokens"):
            assert (await client.post(path, json=body, headers=headers)).status_code == 200
        assert (await client.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code == 401


async def test_keys_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# two people\nfirst\n\n second \n")
    config = keyed(api_key_file=str(tmp_path / "keys"))
    async with in_process(build_app(config, scripted_source("hi", tmp_path))) as client:
        for key in ("sk-key", "first", "second"):
            assert (await client.get("/v1/models", headers={"Authorization": key})).status_code == 200
        assert (await client.get("/v1/models", headers={"Authorization": "# two people"})).status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "localhost.evil"])
async def test_a_foreign_host_is_refused_on_a_loopback_bind(tmp_path: Path, host: str) -> None:
    async with in_process(build_app(ServerConfig(), scripted_source("hi", tmp_path))) as client:
        answer = await client.get("/health", headers={"Host": host})
        assert answer.status_code == 403
        assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1:1", "127.0.0.9", "[::1]:8080", "[::1]", "LOCALHOST"]
)
async def test_names_of_this_machine_are_accepted(tmp_path: Path, host: str) -> None:
    async with in_process(build_app(ServerConfig(), scripted_source("hi", tmp_path))) as client:
        assert (await client.get("/health", headers={"Host": host})).status_code == 200


async def test_any_host_reaches_a_server_that_is_open_to_the_network(tmp_path: Path) -> None:
    config = ServerConfig(network=NetworkConfig(host="0.0.0.0"))
    async with in_process(build_app(config, scripted_source("hi", tmp_path))) as client:
        assert (await client.get("/health", headers={"Host": "gpu-box.lan"})).status_code == 200


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [("http://localhost:3000", True), ("http://127.0.0.1", True), ("https://evil.example", False), ("null", False),
     ("http://localhost.evil.example", False)],
)  # fmt: skip
async def test_only_local_pages_may_read_answers(tmp_path: Path, origin: str, allowed: bool) -> None:
    async with in_process(build_app(keyed(), scripted_source("hi", tmp_path))) as client:
        asked = {
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization",
        }
        preflight = await client.options("/v1/chat/completions", headers=asked)
        assert (preflight.status_code == 200) == allowed  # without a key: browsers send none with a preflight
        assert (preflight.headers.get("access-control-allow-origin") == origin) == allowed
        answer = await client.get("/health", headers={"Origin": origin})
        assert (answer.headers.get("access-control-allow-origin") == origin) == allowed


async def test_any_origin_never_goes_with_credentials(tmp_path: Path) -> None:
    config = ServerConfig(network=NetworkConfig(cors_origins=("*",)))
    async with in_process(build_app(config, scripted_source("hi", tmp_path))) as client:
        answer = await client.get("/health", headers={"Origin": "https://any.example", "Cookie": "a=b"})
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
async def test_bodies_that_a_form_could_send_are_refused(tmp_path: Path, kind: str) -> None:
    async with in_process(build_app(ServerConfig(), scripted_source("hi", tmp_path))) as client:
        answer = await client.post(
            "/v1/chat/completions", content=b'{"messages":[{"role":"user","content":"hi"}]}', headers={"Content-Type": kind}
        )
        assert answer.status_code == 415
        assert "application/json" in answer.json()["error"]["message"]


async def test_large_bodies_are_refused_while_they_arrive(tmp_path: Path) -> None:
    config = ServerConfig(network=NetworkConfig(max_body_bytes=1000))
    async with in_process(build_app(config, scripted_source("hi", tmp_path))) as client:
        declared = await client.post("/v1/chat/completions", json=CHAT | {"pad": "x" * 1000})
        assert declared.status_code == 413

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b" " * 100

        streamed = await client.post("/v1/chat/completions", content=endless(), headers={"Content-Type": "application/json"})
        assert streamed.status_code == 413


async def test_unknown_paths_and_methods_have_the_error_envelope(tmp_path: Path) -> None:
    async with in_process(build_app(ServerConfig(), scripted_source("hi", tmp_path))) as client:
        missing = await client.get("/v1/nowhere")
        assert missing.status_code == 404
        assert missing.json()["error"]["type"] == "not_found_error"
        wrong = await client.get("/v1/chat/completions")
        assert wrong.status_code == 405
        assert "POST" in wrong.headers["allow"]
        assert wrong.json()["error"]["message"]


async def test_every_answer_carries_a_request_id(tmp_path: Path) -> None:
    async with in_process(build_app(keyed(), scripted_source("hi", tmp_path))) as client:
        ids = [(await client.get(path)).headers["x-request-id"] for path in ("/health", "/v1/models", "/nowhere")]
        assert len(set(ids)) == 3


async def test_a_prefix_goes_before_every_route(tmp_path: Path) -> None:
    async with in_process(build_app(keyed(api_prefix="/llm"), scripted_source("hi", tmp_path))) as client:
        assert (await client.get("/llm/health")).status_code == 200
        assert (await client.get("/health")).status_code == 401
        assert (await client.get("/llm/v1/models", headers={"Authorization": "sk-key"})).status_code == 200

"""``mlxcel launch`` with a stand-in for the agent, which writes down how it was started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from mlxcel.config.network import NetworkConfig
from mlxcel.config.server import ServerConfig
from mlxcel.testing.app import LiveServer, scripted_source

Live = Callable[..., LiveServer]
AGENTS = ("claude", "codex", "opencode")
STAND_IN = f"""#!{sys.executable}
import json, os, sys
print(json.dumps({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}))
sys.exit(7)
"""


@dataclass(frozen=True)
class Started:
    """How the agent was started, or what the command said instead."""

    code: int
    output: str
    error: str

    @property
    def arguments(self) -> list[str]:
        found: list[str] = json.loads(self.output)["arguments"]
        return found

    @property
    def environment(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self.output)["environment"]
        return found


class Launcher:
    """Runs the command with a ``PATH`` that holds stand-ins of ``agents``, and an empty home."""

    def __init__(self, folder: Path, agents: tuple[str, ...] = AGENTS) -> None:
        self.home, self._bin = folder / "home", folder / "bin"
        self.home.mkdir()
        self._bin.mkdir()
        for agent in agents:
            (self._bin / agent).write_text(STAND_IN, encoding="utf-8")
            (self._bin / agent).chmod(0o755)

    def __call__(self, *arguments: str, env: dict[str, str] | None = None) -> Started:
        proxies = {name for name in os.environ if name.lower().endswith("_proxy")}
        kept = {name: value for name, value in os.environ.items() if name not in proxies}
        environment = kept | {"PATH": str(self._bin), "HOME": str(self.home)} | (env or {})
        command = [sys.executable, "-m", "mlxcel.cli.main", "launch", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        return Started(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(tmp_path)


def serve(live: Live, folder: Path, *, key: str | None = None) -> str:
    config = ServerConfig(network=NetworkConfig(api_keys=(key,) if key else ()))
    return live(scripted_source("hello", folder / "model"), config).url


def codex_config(arguments: list[str]) -> dict[str, Any]:
    """The configuration that ``-c`` arguments make up; each value is TOML."""
    assert arguments[::2] == ["-c"] * (len(arguments) // 2)
    return tomllib.loads("\n".join(arguments[1::2]))


def test_claude(live: Live, launcher: Launcher, tmp_path: Path) -> None:
    url = serve(live, tmp_path)
    hostile = {"ANTHROPIC_API_KEY": "sk-elsewhere", "CLAUDE_CODE_USE_BEDROCK": "1"}
    started = launcher("claude", "--url", url + "/v1/", "--", "-p", "do it", env=hostile)
    assert started.code == 7, "the agent takes the place of the command"
    assert started.environment["ANTHROPIC_BASE_URL"] == url
    assert started.environment["ANTHROPIC_MODEL"] == "scripted"
    assert started.environment["ANTHROPIC_AUTH_TOKEN"]
    assert started.environment["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "8192"
    assert not hostile.keys() & started.environment.keys()
    assert started.arguments[-2:] == ["-p", "do it"]
    assert json.loads(started.arguments[1])["env"]["ANTHROPIC_BASE_URL"] == url


def test_codex(live: Live, launcher: Launcher, tmp_path: Path) -> None:
    url = serve(live, tmp_path)
    config = codex_config(launcher("codex", "--url", url, "--model", 'a "quoted" name').arguments)
    assert config["model"] == 'a "quoted" name'
    assert config["model_context_window"] == 8192
    assert config["web_search"] == "disabled"
    provider = {"name": "mlxcel", "base_url": f"{url}/v1", "wire_api": "responses"}
    assert config["model_providers"] == {config["model_provider"]: provider}


def test_opencode(live: Live, launcher: Launcher, tmp_path: Path) -> None:
    url = serve(live, tmp_path)
    started = launcher("opencode", "--url", url, "--", "run", "do it")
    config = json.loads(started.environment["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == "mlxcel/scripted"
    assert config["provider"]["mlxcel"]["options"] == {"baseURL": f"{url}/v1"}
    assert config["provider"]["mlxcel"]["models"]["scripted"]["limit"] == {"context": 8192, "output": 4096}
    assert started.arguments == ["run", "do it"]


@pytest.mark.parametrize(
    ("agent", "variable", "text"),
    [
        ("claude", "ANTHROPIC_AUTH_TOKEN", "sesame"),
        ("codex", "MLXCEL_API_KEY", "sesame"),
        ("opencode", "OPENCODE_CONFIG_CONTENT", '"apiKey": "sesame"'),
    ],
)
def test_the_key_reaches_the_agent_but_no_command_line(
    live: Live, launcher: Launcher, tmp_path: Path, agent: str, variable: str, text: str
) -> None:
    url = serve(live, tmp_path, key="sesame")
    started = launcher(agent, "--url", url, env={"MLXCEL_API_KEY": "sesame,other"})
    assert text in started.environment[variable]
    assert "other" not in started.environment[variable]
    assert not any("sesame" in word for word in started.arguments)


@pytest.mark.parametrize("agent", AGENTS)
def test_print_starts_nothing_and_can_be_sourced(live: Live, launcher: Launcher, tmp_path: Path, agent: str) -> None:
    url = serve(live, tmp_path)
    shown = launcher(agent, "--url", url, "--print", "--", "it's")
    assert shown.code == 0
    assert url in shown.output
    env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": str(launcher.home)}
    sourced = subprocess.run(["/bin/sh", "-c", shown.output], capture_output=True, text=True, timeout=60, env=env)
    printed, launched = json.loads(sourced.stdout), launcher(agent, "--url", url, "--", "it's")
    assert printed["arguments"] == launched.arguments
    for name in ("ANTHROPIC_BASE_URL", "OPENCODE_CONFIG_CONTENT"):
        assert printed["environment"].get(name) == launched.environment.get(name)


@pytest.mark.parametrize("agent", AGENTS)
def test_nothing_is_written_to_the_home_folder(live: Live, launcher: Launcher, tmp_path: Path, agent: str) -> None:
    launcher(agent, "--url", serve(live, tmp_path))
    assert list(launcher.home.iterdir()) == []


def test_a_proxy_is_not_asked_for_this_machine(live: Live, launcher: Launcher, tmp_path: Path) -> None:
    proxy = {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "example.org"}
    started = launcher("claude", "--url", serve(live, tmp_path), env=proxy)
    assert started.environment["NO_PROXY"] == started.environment["no_proxy"] == "example.org,127.0.0.1"


class TestFailures:
    def fails(self, started: Started) -> str:
        assert started.code == 1
        (line,) = started.error.strip().splitlines()
        assert line.startswith("error: ")
        return line

    def test_an_agent_that_is_not_installed(self, tmp_path: Path) -> None:
        line = self.fails(Launcher(tmp_path, agents=())("codex"))
        assert "npm install -g @openai/codex" in line

    def test_no_server(self, launcher: Launcher) -> None:
        assert "no server answers on http://127.0.0.1:9" in self.fails(launcher("claude", "--url", "http://127.0.0.1:9"))
        assert "no server answers" in self.fails(launcher("claude", "--url", "not a url"))

    @pytest.mark.parametrize("answer", [b"hello", b"[]", b'{"status": "loading model"}'])
    def test_something_else_answers(self, launcher: Launcher, answer: bytes) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                """Nobody reads it."""

        with HTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            line = self.fails(launcher("claude", "--url", f"http://127.0.0.1:{server.server_port}"))
            server.shutdown()
        assert "no chat model ready" in line if b"status" in answer else "no mlxcel server" in line

    def test_a_refused_key(self, live: Live, launcher: Launcher, tmp_path: Path) -> None:
        url = serve(live, tmp_path, key="sesame")
        assert "--api-key" in self.fails(launcher("claude", "--url", url))
        assert "--api-key" in self.fails(launcher("claude", "--url", url, "--api-key", "wrong"))

    def test_an_unknown_agent(self, launcher: Launcher) -> None:
        assert "opencode" in self.fails(launcher("emacs"))

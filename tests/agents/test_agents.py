"""Claude Code, Codex and opencode complete a task: read a file, edit it, run a command, finish."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mlxcel.app import Source
from mlxcel.config.network import NetworkConfig
from mlxcel.config.server import ServerConfig
from mlxcel.testing.agent_session import FINAL_ANSWER, AgentSession
from mlxcel.testing.app import LiveServer

pytestmark = pytest.mark.agents

Live = Callable[..., LiveServer]
MakeSource = Callable[[AgentSession], Source]
MakeDesk = Callable[..., Any]

KEY = "key-of-a-test"
TASK = "Make the colour in settings.ini blue and copy the file to copy.ini."
COMMANDS = {
    "claude": ("-p", TASK, "--permission-mode", "acceptEdits", "--allowedTools", "Bash,Read,Edit"),
    "codex": ("exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", TASK),
    "opencode": ("run", TASK),
}
# What docs/agents.md tells to write by hand.
CODEX_CONFIG = """\
model = "scripted"
model_provider = "mlxcel"
analytics.enabled = false
features.plugins = false

[model_providers.mlxcel]
name = "mlxcel"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
"""


def server_of(live: Live, source: Source, *, key: str | None = None, compat: str = "strict") -> str:
    network = NetworkConfig(api_keys=(key,) if key else (), compat=compat)
    return live(source, ServerConfig(network=network)).url


def check_task(desk: Any, done: subprocess.CompletedProcess[str]) -> None:
    """The task is done, the model saw the results, and nothing else was talked to."""
    session: AgentSession = desk.session
    told = f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert done.returncode == 0, told
    assert FINAL_ANSWER in done.stdout, told
    assert session.after in session.file.read_text(encoding="utf-8"), told
    assert session.copy.read_text(encoding="utf-8") == session.file.read_text(encoding="utf-8"), told
    last = max(session.prompts, key=session.results_in)
    results = last.split("\n<tool_response>\n")[1:]
    assert len(results) == 3
    assert session.before in results[0], "the file as it was read"
    assert session.after in results[2], "what the command printed"
    for earlier, later in pairwise(session.prompts):
        assert later.startswith(earlier), "the prompt cache would start over"
    assert desk.proxy.seen == []


@pytest.mark.parametrize("agent", COMMANDS)
@pytest.mark.parametrize("key", [None, KEY], ids=["open", "with a key"])
def test_launched_on_a_strict_server(live: Live, source: MakeSource, desk: MakeDesk, agent: str, key: str | None) -> None:
    place = desk(thinks=key is not None)
    url = server_of(live, source(place.session), key=key)
    check_task(place, place.launch(agent, *COMMANDS[agent], url=url, key=key))


def test_launch_wins_over_settings_that_lead_elsewhere(live: Live, source: MakeSource, desk: MakeDesk) -> None:
    place = desk()
    url = server_of(live, source(place.session))
    (place.home / ".claude").mkdir()
    settings = place.home / ".claude" / "settings.json"
    text = json.dumps({"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1", "ANTHROPIC_MODEL": "other"}})
    settings.write_text(text, encoding="utf-8")
    check_task(place, place.launch("claude", *COMMANDS["claude"], url=url, key=None))
    assert settings.read_text(encoding="utf-8") == text


def codex_by_hand(place: Any, url: str, *, first_lines: str = "") -> subprocess.CompletedProcess[str]:
    (place.home / ".codex").mkdir()
    (place.home / ".codex" / "config.toml").write_text(first_lines + CODEX_CONFIG.format(url=url), encoding="utf-8")
    done: subprocess.CompletedProcess[str] = place.run("codex", *COMMANDS["codex"], env={"NO_PROXY": "127.0.0.1"})
    return done


def test_codex_s_web_search_needs_a_lenient_server(live: Live, source: MakeSource, desk: MakeDesk) -> None:
    place = desk()
    url = server_of(live, source(place.session), compat="lenient")
    check_task(place, codex_by_hand(place, url))


def test_a_strict_server_refuses_codex_s_web_search(live: Live, source: MakeSource, desk: MakeDesk) -> None:
    place = desk()
    url = server_of(live, source(place.session))
    done = codex_by_hand(place, url)
    assert done.returncode != 0
    assert "web_search" in done.stdout + done.stderr
    assert place.session.prompts == []


def test_codex_without_its_web_search_is_served_strictly(live: Live, source: MakeSource, desk: MakeDesk) -> None:
    place = desk(thinks=True)
    url = server_of(live, source(place.session))
    check_task(place, codex_by_hand(place, url, first_lines='web_search = "disabled"\n'))


@pytest.mark.parametrize("thinks", [False, True], ids=["", "thinking"])
@pytest.mark.parametrize("package", ["@ai-sdk/openai", "@ai-sdk/anthropic", "@ai-sdk/openai-compatible"])
def test_opencode_over_each_of_its_sdks(live: Live, source: MakeSource, desk: MakeDesk, package: str, thinks: bool) -> None:
    place = desk(thinks=thinks)
    url = server_of(live, source(place.session), key=KEY)
    provider = {
        "npm": package,
        "name": "mlxcel",
        "options": {"baseURL": f"{url}/v1", "apiKey": KEY},
        "models": {"scripted": {"name": "scripted", "limit": {"context": 400_000, "output": 8_000}}},
    }
    config: dict[str, Any] = {"model": "local/scripted", "small_model": "local/scripted", "provider": {"local": provider}}
    config |= {"autoupdate": False, "share": "disabled"}
    (Path(place.session.folder) / "opencode.json").write_text(json.dumps(config), encoding="utf-8")
    quiet = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "NO_PROXY": "127.0.0.1"}
    check_task(place, place.run("opencode", *COMMANDS["opencode"], env=quiet))

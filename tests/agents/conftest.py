"""Real agents and SDKs from npm. ``make agents`` installs them into ``.agents``, which git ignores."""

from __future__ import annotations

import dataclasses
import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from mlxcel.app import Source
from mlxcel.testing.agent_session import AgentSession
from mlxcel.testing.app import scripted_source
from mlxcel.testing.scripted_runner import SCRIPTED_MODEL

ROOT = Path(__file__).parents[2]
# Agents send prompts of 10,000 words and more, and the tiny tokenizer makes two tokens of each.
ROOMY_MODEL = dataclasses.replace(SCRIPTED_MODEL, context_tokens=400_000, block_count=40_000)
RUN_S = 180


@pytest.fixture(scope="session")
def packages() -> Path:
    """The folder of the npm packages."""
    folder = ROOT / ".agents" / "node_modules"
    if not folder.is_dir():
        pytest.fail("the npm packages are missing; make agents installs them")
    return folder


class RecordingProxy(socketserver.ThreadingTCPServer):
    """Stands between the agents and the internet: notes the first line of every request and answers nothing."""

    daemon_threads = True

    def __init__(self) -> None:
        self.seen: list[str] = []
        super().__init__(("127.0.0.1", 0), _Refusal)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Refusal(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        line = self.rfile.readline(4096).decode("latin-1").strip()
        if line and isinstance(self.server, RecordingProxy):
            self.server.seen.append(line)
        self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@pytest.fixture
def proxy() -> Iterator[RecordingProxy]:
    with RecordingProxy() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@dataclasses.dataclass(frozen=True)
class Desk:
    """Where one agent works: a home of its own, a folder with the task, and no way to the internet."""

    home: Path
    session: AgentSession
    proxy: RecordingProxy
    packages: Path

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder of the task."""
        path = f"{self.packages / '.bin'}{os.pathsep}{os.environ['PATH']}"
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), self.proxy.url)
        base = {"PATH": path, "HOME": str(self.home), "LANG": "C.UTF-8", "TERM": "dumb", **proxies, **(env or {})}
        return subprocess.run(
            command,
            cwd=self.session.folder,
            env=base,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_S,
        )

    def launch(self, agent: str, *arguments: str, url: str, key: str | None) -> subprocess.CompletedProcess[str]:
        """``mlxcel launch``."""
        keys = ("--api-key", key) if key else ()
        return self.run(sys.executable, "-m", "mlxcel.cli.main", "launch", agent, "--url", url, *keys, "--", *arguments)


@pytest.fixture
def desk(tmp_path: Path, proxy: RecordingProxy, packages: Path) -> Callable[..., Desk]:
    def make(*, thinks: bool = False) -> Desk:
        home, folder = tmp_path / "home", tmp_path / "task"
        home.mkdir()
        folder.mkdir()
        session = AgentSession(folder, thinks=thinks)
        _settle_opencode(home)
        session.file.write_text(f"[window]\n{session.before}\n", encoding="utf-8")
        return Desk(home, session, proxy, packages)

    return make


def _settle_opencode(home: Path) -> None:
    """A home where opencode has been before: the first time it installs its plugin interface from npm, unasked."""
    folder = home / ".config" / "opencode"
    (folder / "node_modules").mkdir(parents=True)
    package = {"dependencies": {"@opencode-ai/plugin": "*"}}
    (folder / "package.json").write_text(json.dumps(package), encoding="utf-8")
    (folder / "package-lock.json").write_text(json.dumps({"packages": {"": package}}), encoding="utf-8")


@pytest.fixture
def source(tmp_path: Path) -> Callable[[AgentSession], Source]:
    """A model that plays a session."""
    return lambda session: scripted_source(session.say, tmp_path / "model", info=ROOMY_MODEL)

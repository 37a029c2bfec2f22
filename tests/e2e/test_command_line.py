"""The installed commands, as processes."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from mlxcel.testing.tiny_models import write_tiny_checkpoint

MLXCEL = (sys.executable, "-m", "mlxcel.cli.main")
Start = Callable[..., "Server"]


class Server:
    """A server process; ``url`` once it has said that it is ready."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*MLXCEL, "serve", "--port", "0", *arguments],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | (env or {}),
        )
        self.output: list[str] = []
        self.url = self._wait()

    def _wait(self) -> str:
        stderr = self.process.stderr
        if stderr is None:
            raise RuntimeError("no output to read")
        for line in stderr:
            self.output.append(line)
            found = re.search(r"is ready on (\S+?)\. ", line)
            if found:
                return found.group(1)
        raise RuntimeError("the server did not start: " + "".join(self.output))


@pytest.fixture
def start() -> Iterator[Start]:
    servers: list[Server] = []

    def run(*arguments: str, env: dict[str, str] | None = None) -> Server:
        servers.append(Server(*arguments, env=env))
        return servers[-1]

    yield run
    for server in servers:
        server.process.kill()
        server.process.communicate()


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint("llama", tmp_path_factory.mktemp("llama"))


def fails(*arguments: str, env: dict[str, str] | None = None) -> str:
    """Run a command that must fail with one line; returns the line."""
    done = subprocess.run([*MLXCEL, *arguments], capture_output=True, text=True, timeout=120, env=os.environ | (env or {}))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


def test_a_missing_model_is_one_line(tmp_path: Path) -> None:
    assert "nowhere" in fails("serve", "-m", str(tmp_path / "nowhere.gguf"))


def test_no_model_is_one_line() -> None:
    assert "-m" in fails("serve", env={"LLAMA_ARG_MODEL": ""})


def test_a_truncated_gguf_is_one_line(tmp_path: Path, smollm2_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    with smollm2_path.open("rb") as source:
        broken.write_bytes(source.read(5_000_000))
    fails("serve", "-m", str(broken))


def test_a_truncated_header_is_one_line(tmp_path: Path, smollm2_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    with smollm2_path.open("rb") as source:
        broken.write_bytes(source.read(3000))
    fails("serve", "-m", str(broken))


def test_a_foreign_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.gguf").write_text("these are not weights")
    fails("serve", "-m", str(tmp_path / "notes.gguf"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "readme.txt").write_text("neither are these")
    fails("serve", "-m", str(tmp_path / "folder"))


def test_a_truncated_safetensors_file_is_one_line(tmp_path: Path, tiny_llama: Path) -> None:
    for item in tiny_llama.iterdir():
        (tmp_path / item.name).write_bytes(item.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    fails("serve", "-m", str(tmp_path))


def test_a_hub_name_while_offline_is_one_line(tmp_path: Path) -> None:
    line = fails("serve", "-m", "some-owner/some-model", "--offline", "--model-store-root", str(tmp_path))
    assert "some-owner/some-model" in line


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--port", "70000"), "--port"),
        (("--ctx-size", "many"), "--ctx-size"),
        (("--dtype", "int3"), "--dtype"),
        (("--logit-bias", "5+inf"), "--logit-bias"),
        (("--no-such-flag",), "--no-such-flag"),
        (("--chat-template-kwargs", "[1]"), "--chat-template-kwargs"),
        (("--chat-template-file", "/nonexistent/file"), "--chat-template-file"),
        (("--tool-call-parser", "nonsense"), "--tool-call-parser"),
        (("--chat-template", "{% if %}"), "template"),
        (("--ctx-size", "1024", "--parallel", "4"), "--ctx-size"),
    ],
)
def test_a_bad_option_is_one_line_that_names_it(tiny_llama: Path, flags: tuple[str, ...], named: str) -> None:
    assert named in fails("serve", "-m", str(tiny_llama), *flags)


def test_a_bad_environment_value_names_the_variable(tiny_llama: Path) -> None:
    assert "LLAMA_ARG_CTX_SIZE" in fails("serve", "-m", str(tiny_llama), env={"LLAMA_ARG_CTX_SIZE": "much"})


def test_a_port_in_use_is_one_line(start: Start, tiny_llama: Path) -> None:
    server = start("-m", str(tiny_llama))
    assert "--port" in fails("serve", "-m", str(tiny_llama), "--port", server.url.rpartition(":")[2])


def test_the_server_answers_and_stops_on_a_signal(start: Start, tiny_llama: Path) -> None:
    server = start(
        "-m", str(tiny_llama), "-c", "2048", "-np", "2", "-b", "256", "-n", "5", env={"LLAMA_ARG_ALIAS": "tiny,little"}
    )
    answer = httpx2.post(
        server.url + "/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]}, timeout=30
    ).json()
    assert answer["model"] == "little"
    assert answer["usage"]["completion_tokens"] <= 5
    health = httpx2.get(server.url + "/health").json()
    assert health["context_size"] in (1024, 512)
    assert health["batch"]["max_batch_size"] == 2
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0


def test_keys_from_flag_and_environment_add_up(start: Start, tiny_llama: Path) -> None:
    server = start("-m", str(tiny_llama), "--api-key", "one", env={"LLAMA_API_KEY": "two,three"})
    for key in ("one", "two", "three"):
        assert httpx2.get(server.url + "/v1/models", headers={"Authorization": key}).status_code == 200
    assert httpx2.get(server.url + "/v1/models", headers={"Authorization": "Bearer four"}).status_code == 401


def test_help_is_quick_and_names_every_variable() -> None:
    started_s = time.monotonic()
    done = subprocess.run([*MLXCEL, "serve", "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert time.monotonic() - started_s < 10
    assert "LLAMA_ARG_CTX_SIZE" in done.stdout
    probe = (
        "import sys, mlxcel.cli.serve as serve; serve.parse(['-m', 'x']);"
        " print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert loaded.stdout.strip() == "[]"


def test_metrics_have_a_port_of_their_own_without_a_key(start: Start, tiny_llama: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = start("-m", str(tiny_llama), "--metrics-port", str(port), "--api-key", "sk-1")
    aside = f"http://127.0.0.1:{port}"
    scraped = httpx2.get(aside + "/metrics")
    assert scraped.status_code == 200
    assert "mlxcel_slots_total 4" in scraped.text
    assert httpx2.get(aside + "/health").status_code == 404
    assert httpx2.get(aside + "/metrics", headers={"Host": "elsewhere.example"}).status_code == 403
    assert httpx2.get(server.url + "/metrics").status_code == 401
    assert "--metrics-port" in fails("serve", "-m", str(tiny_llama), "--port", "0", "--metrics-port", str(port))
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(aside + "/metrics")

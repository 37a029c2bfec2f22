"""Downloads, against a stand-in hub on a loopback port that can fail on purpose."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import torch
from safetensors.torch import save

from mlxcel.core.errors import StartupError
from mlxcel.runners.hub import download, locate
from mlxcel.runners.hub.folder import is_complete
from mlxcel.runners.hub.selection import wanted_files

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "someone/tiny"
CHUNK_BYTES = 10 * 1024 * 1024  # the hub client writes an interrupted file in pieces of this size
WEIGHTS = save({"w": torch.arange(16.0)})
SMALL = {"config.json": b'{"model_type": "llama"}', "model.safetensors": WEIGHTS, "tokenizer.json": b"{}"}


class Hub(ThreadingHTTPServer):
    """The hub's routes for one repository.

    Attributes:
        files: path -> content.
        requests: "METHOD path [range]" in order of arrival.
        token: when set, the only one that is let in.
        break_after: path -> bytes after which a download of it is cut, once.
        down: every request after a cut, or from now on, is answered 503.
        commit: what "main" points at.
        wrong_digests: announce another SHA-256 than the files have.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = dict(SMALL)
        self.requests: list[str] = []
        self.token: str | None = None
        self.gated = False
        self.break_after: dict[str, int] = {}
        self.down = False
        self.commit = COMMIT
        self.wrong_digests = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def downloads(self) -> list[str]:
        return [request for request in self.requests if request.startswith("GET /someone/tiny/resolve")]


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test output quiet."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        if self.server.down:
            self._send(503, b"down")
        elif self.server.gated:
            self._send(403, b"", {"X-Error-Code": "GatedRepo"})
        elif self.server.token is not None and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif path.startswith("/api/"):
            self._send_api(path)
        elif (named := re.fullmatch(rf"/{REPO}/resolve/\w+/(.+)", path)) and named[1] in self.server.files:
            self._send_file(named[1], with_body=with_body)
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})

    def _send_api(self, path: str) -> None:
        if path in (f"/api/models/{REPO}/revision/main", f"/api/models/{REPO}/revision/v2"):
            siblings = [{"rfilename": name} for name in self.server.files]
            self._send(200, json.dumps({"id": REPO, "sha": self.server.commit, "siblings": siblings}).encode())
        elif path.startswith(f"/api/models/{REPO}/revision/"):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif path == f"/api/models/{REPO}/tree/{self.server.commit}":
            entries = [self._entry(name, content) for name, content in self.server.files.items()]
            self._send(200, json.dumps(entries).encode())
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _entry(self, name: str, content: bytes) -> dict[str, object]:
        entry: dict[str, object] = {"type": "file", "path": name, "size": len(content), "oid": digest(content)}
        if name.endswith((".safetensors", ".gguf")):
            salt = b"other" if self.server.wrong_digests else b""
            sha256 = hashlib.sha256(content + salt).hexdigest()
            entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 130}
        return entry

    def _send_file(self, name: str, *, with_body: bool) -> None:
        content = self.server.files[name]
        start = int(re.findall(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[0])
        headers = {"ETag": f'"{digest(content)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._send_head(206 if start else 200, len(content) - start, headers)
        if not with_body:
            return
        cut = self.server.break_after.pop(name, None)
        self.wfile.write(content[start : len(content) if cut is None else start + cut])
        if cut is not None:
            self.server.down = True
            self.close_connection = True

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self._send_head(status, len(body), {"Content-Type": "application/json", **(headers or {})})
        if self.command == "GET":
            self.wfile.write(body)

    def _send_head(self, status: int, body_bytes: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(body_bytes)}.items():
            self.send_header(key, value)
        self.end_headers()


def digest(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("MLXCEL_NO_PROGRESS", "1")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "MLXCEL_DEFAULT_ORG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def fetch(hub: Hub, tmp_path: Path) -> Callable[..., Path]:
    def call(model: str = REPO, **options: object) -> Path:
        return locate(model, store_root=tmp_path / "store", **options)  # type: ignore[arg-type]

    return call


def refusal(fetch: Callable[..., Path], model: str = REPO, **options: object) -> str:
    with pytest.raises(StartupError) as caught:
        fetch(model, **options)
    assert "\n" not in caught.value.message
    return caught.value.message


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but for the store's own notes."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_download_then_find_without_the_network(hub: Hub, fetch: Callable[..., Path], tmp_path: Path) -> None:
    folder = fetch()
    assert folder == tmp_path / "store" / REPO
    assert contents(folder) == SMALL
    hub.down = True
    hub.requests.clear()
    assert fetch() == folder
    assert fetch(offline=True) == folder
    assert not hub.requests


def test_bare_name_means_the_default_organisation(
    hub: Hub, fetch: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "has no model mlx-community/tiny" in refusal(fetch, "tiny")
    monkeypatch.setenv("MLXCEL_DEFAULT_ORG", "someone")
    assert fetch("tiny").name == "tiny"


def test_revisions_are_kept_apart(fetch: Callable[..., Path], tmp_path: Path) -> None:
    assert fetch(revision="v2") == tmp_path / "store" / "someone" / "tiny@v2"
    assert "has no revision v9" in refusal(fetch, revision="v9")


def test_interrupted_download_is_resumed(hub: Hub, fetch: Callable[..., Path], tmp_path: Path) -> None:
    hub.files["model.safetensors"] = save({"w": torch.arange(CHUNK_BYTES // 4 + 1000, dtype=torch.float32)})
    hub.break_after["model.safetensors"] = CHUNK_BYTES + 100
    assert "answered 503" in refusal(fetch)
    assert not (tmp_path / "store" / REPO).exists()
    hub.down = False
    hub.requests.clear()
    folder = fetch()
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert hub.downloads() == [
        f"GET /someone/tiny/resolve/{COMMIT}/model.safetensors bytes={CHUNK_BYTES}-",
        f"GET /someone/tiny/resolve/{COMMIT}/tokenizer.json",
    ]
    assert set(contents(folder)) == set(SMALL)


def test_what_was_begun_of_an_older_commit_is_dropped(hub: Hub, fetch: Callable[..., Path]) -> None:
    hub.files["model.safetensors"] = bytes(CHUNK_BYTES + 1000)
    hub.break_after["model.safetensors"] = CHUNK_BYTES + 100
    assert "answered 503" in refusal(fetch)
    hub.down = False
    hub.commit = COMMIT[::-1]
    hub.files = {**SMALL, "config.json": b'{"model_type": "qwen2"}'}
    assert contents(fetch()) == hub.files


def test_data_that_is_not_what_the_hub_announced(hub: Hub, fetch: Callable[..., Path]) -> None:
    hub.wrong_digests = True
    assert "model.safetensors arrived damaged" in refusal(fetch)
    hub.wrong_digests = False
    assert contents(fetch()) == SMALL


def test_download_command_to_a_folder(hub: Hub, tmp_path: Path) -> None:
    target = tmp_path / "here" / "tiny"
    assert download(REPO, store_root=tmp_path / "store", local_dir=target) == target
    assert contents(target) == SMALL
    (target / "notes.md").write_text("mine")
    hub.requests.clear()
    download(REPO, local_dir=target)
    assert not hub.downloads()
    download(REPO, local_dir=target, fresh=True)
    assert len(hub.downloads()) == len(SMALL)
    assert contents(target) == {**SMALL, "notes.md": b"mine"}
    assert [path.name for path in target.parent.iterdir() if path.is_dir()] == ["tiny"]
    with pytest.raises(StartupError, match="not a model name"):
        download("../evil", store_root=tmp_path)


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_damaged_store_entry_is_repaired(damage: str, hub: Hub, fetch: Callable[..., Path]) -> None:
    folder = fetch()
    if damage == "missing":
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model.safetensors"}}')
    else:
        (folder / "model.safetensors").write_bytes(WEIGHTS[:-4])
    assert not is_complete(folder)
    assert fetch() == folder
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert is_complete(folder)


def test_unknown_private_and_gated_models(hub: Hub, fetch: Callable[..., Path]) -> None:
    assert "has no model someone/else" in refusal(fetch, "someone/else")
    hub.token = "right"
    assert "or it is private and HF_TOKEN gives no access" in refusal(fetch)
    hub.gated = True
    assert "is gated: accept its terms" in refusal(fetch)


def test_token_from_the_argument_or_the_environment(
    hub: Hub, fetch: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "right"
    assert "private" in refusal(fetch, token="wrong")
    monkeypatch.setenv("HF_TOKEN", "right")
    assert fetch().is_dir()


def test_offline_never_connects(hub: Hub, fetch: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "offline mode forbids downloading it" in refusal(fetch, offline=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "offline mode" in refusal(fetch)
    assert not hub.requests


def test_unreachable_hub(hub: Hub, fetch: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "cannot reach http://127.0.0.1:9 to download someone/tiny" in refusal(fetch)


def test_plain_http_to_another_machine_is_refused(fetch: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    assert "is not https" in refusal(fetch, token="secret")


def test_repository_without_weights(hub: Hub, fetch: Callable[..., Path]) -> None:
    del hub.files["model.safetensors"]
    hub.files["pytorch_model.bin"] = b"\x80\x02"
    assert "has no safetensors or GGUF weights" in refusal(fetch)


def test_gguf_repository(hub: Hub, fetch: Callable[..., Path]) -> None:
    hub.files = {"README.md": b"", "m-Q8_0.gguf": b"GGUF8", "m-Q4_K_M.gguf": b"GGUF4", "mmproj-m.gguf": b"GGUFv"}
    path = fetch()
    assert (path.name, path.read_bytes()) == ("m-Q4_K_M.gguf", b"GGUF4")
    assert fetch(f"{REPO}:q8_0").read_bytes() == b"GGUF8"
    assert fetch(f"{REPO}:q4_k_m", offline=True).read_bytes() == b"GGUF4"
    assert fetch(offline=True) == path
    assert "named Q2_K" in refusal(fetch, f"{REPO}:Q2_K")


def test_dangerous_names_are_left_out(hub: Hub, fetch: Callable[..., Path], tmp_path: Path) -> None:
    hub.files |= {
        "../../evil.json": b"{}",
        "modeling_tiny.py": b"raise SystemExit",
        ".hidden.json": b"{}",
        "onnx/model.json": b"{}",
        "1_Pooling/config.json": b"{}",
        "weights.bin": b"",
    }
    folder = fetch()
    assert set(contents(folder)) == {*SMALL, "1_Pooling/config.json"}
    assert not list(tmp_path.rglob("evil.json"))


@pytest.mark.parametrize(
    ("names", "tag", "wanted"),
    [
        (["model-1.safetensors", "consolidated.safetensors", "a.gguf"], "", ["model-1.safetensors"]),
        (["weights.safetensors", "config.json"], "", ["config.json", "weights.safetensors"]),
        (["model.safetensors", "a-Q4_0.gguf", "config.json"], "q4_0", ["config.json", "a-Q4_0.gguf"]),
        (["a-Q8_0.gguf", "a-F16.gguf"], "", ["a-Q8_0.gguf"]),
        (["b-Q4_0-00001-of-00002.gguf", "b-Q4_0-00002-of-00002.gguf", "b-Q8_0.gguf"], "",
         ["b-Q4_0-00001-of-00002.gguf", "b-Q4_0-00002-of-00002.gguf"]),
        (["/etc/x.json", "a\\b.json", "..json", "model.safetensors"], "", ["model.safetensors"]),
        (["config.json"], "", []),
    ],
)  # fmt: skip
def test_wanted_files(names: list[str], tag: str, wanted: list[str]) -> None:
    assert wanted_files(names, tag) == wanted

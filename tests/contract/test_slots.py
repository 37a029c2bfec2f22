"""Slots: their state, and their tokens saved, restored and forgotten."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.app import build_app
from mlxcel.cli.serve import parse
from mlxcel.core.errors import InvalidRequest, StartupError
from mlxcel.stores.slots import check_name
from mlxcel.testing.app import LiveServer, checkpoint_source, scripted_source
from mlxcel.testing.scripted_runner import SCRIPTED_MODEL
from mlxcel.testing.tiny_models import write_tiny_checkpoint

Live = Callable[..., LiveServer]
PROMPT = "The river runs past the old mill and the stones are still. " * 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "slots").mkdir()
    return tmp_path / "slots"


@pytest.fixture
def start(live: Live, model: Path, files: Path) -> Callable[..., LiveServer]:
    def run(*flags: str, checkpoint: Path = model) -> LiveServer:
        config = parse(["-np", "2", "--dtype", "fp32", "--slot-save-path", str(files), *flags])
        return live(checkpoint_source(checkpoint, config), config)

    return run


def complete(server: LiveServer, prompt: str = PROMPT) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 4, "temperature": 0, "ignore_eos": True}
    answer: dict[str, Any] = httpx2.post(server.url + "/completion", json=body, timeout=60).json()
    return answer


def act(server: LiveServer, slot: int | str, action: str, filename: str | None = None) -> httpx2.Response:
    body = {} if filename is None else {"filename": filename}
    return httpx2.post(f"{server.url}/slots/{slot}?action={action}", json=body, timeout=60)


def test_a_restored_slot_warms_the_cache_of_another_process(start: Callable[..., LiveServer], files: Path) -> None:
    first = start()
    answer = complete(first)
    saved = act(first, 0, "save", "chat.bin").json()
    assert saved["id_slot"] == 0
    assert saved["filename"] == "chat.bin"
    assert saved["n_saved"] == answer["tokens_evaluated"] + 4
    assert saved["n_written"] == (files / "chat.bin").stat().st_size
    assert saved["timings"]["save_ms"] > 0
    assert [path.name for path in files.iterdir()] == ["chat.bin"]
    assert (files / "chat.bin").stat().st_mode & 0o777 == 0o600

    second = start()
    restored = act(second, 1, "restore", "chat.bin").json()
    assert restored["n_restored"] == saved["n_saved"]
    assert restored["n_read"] == saved["n_written"]
    assert restored["timings"]["restore_ms"] > 0
    warm = complete(second)
    assert warm["tokens_cached"] > 0.8 * warm["tokens_evaluated"]
    assert warm["content"] == answer["content"]


def test_a_restored_slot_can_be_saved_again_and_the_others_are_left_alone(
    start: Callable[..., LiveServer], files: Path
) -> None:
    server = start()
    complete(server)
    act(server, 0, "save", "a")
    complete(server, "another prompt of some length, which fills the first slot again")
    assert act(server, 1, "restore", "a").status_code == 200
    assert act(server, 1, "save", "b").json()["n_saved"] == act(server, 1, "erase").json()["n_erased"]
    assert (files / "a").read_bytes() == (files / "b").read_bytes()
    assert act(server, 0, "save", "c").json()["n_saved"] < act(server, 1, "restore", "a").json()["n_restored"]


def test_erasing_forgets(start: Callable[..., LiveServer]) -> None:
    server = start()
    answer = complete(server)
    assert act(server, 0, "erase").json() == {"id_slot": 0, "n_erased": answer["tokens_evaluated"] + 4}
    assert act(server, 0, "erase").json() == {"id_slot": 0, "n_erased": 0}
    assert act(server, 0, "save", "x").status_code == 400


@pytest.mark.parametrize("slot", ["2", "-1", "x", "99999999999999999999"])
@pytest.mark.parametrize("action", ["save", "restore", "erase"])
def test_unknown_slots(start: Callable[..., LiveServer], slot: str, action: str) -> None:
    answer = act(start(), slot, action, "x")
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "Invalid slot ID")


def test_unknown_actions_and_missing_names(start: Callable[..., LiveServer]) -> None:
    server = start()
    assert act(server, 0, "copy", "x").json()["error"]["message"] == "Invalid action"
    assert act(server, 0, "", "x").status_code == 400
    assert act(server, 0, "save").json()["error"]["param"] == "filename"


BAD_NAMES = ["", "..", ".", "a/b", "../x", "a\\b", "a:b", "x.", " x", "x ", "a\x00b", "a\uff0eb", "x" * 256]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_could_lead_elsewhere_are_refused(start: Callable[..., LiveServer], files: Path, name: str) -> None:
    server = start()
    complete(server)
    for action in ("save", "restore"):
        answer = act(server, 0, action, name)
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "Invalid filename")
    assert not list(files.iterdir())


@given(st.text(max_size=300))
def test_an_accepted_name_is_one_plain_name(name: str) -> None:
    try:
        check_name(name)
    except InvalidRequest:
        return
    assert Path("/slots") / name == Path("/slots/" + name)
    assert (Path("/slots") / name).parent == Path("/slots")
    assert "\x00" not in name
    assert len(name.encode()) <= 255


def test_files_that_cannot_be_restored(start: Callable[..., LiveServer], files: Path, tmp_path: Path) -> None:
    server = start()
    complete(server)
    act(server, 0, "save", "good")
    good = (files / "good").read_bytes()
    (files / "cut").write_bytes(good[:-3])
    (files / "noise").write_bytes(os.urandom(5000))
    (files / "empty").write_bytes(b"")
    (files / "long").write_bytes(good + b"\0" * 4_000_000)
    (files / "ids").write_bytes(good[:-4] + b"\xff\xff\xff\x7f")
    (tmp_path / "outside").write_bytes(good)
    (files / "link").symlink_to(tmp_path / "outside")
    (files / "folder").mkdir()
    os.mkfifo(files / "pipe")
    for name in ("cut", "noise", "empty", "long", "ids", "link", "folder", "pipe", "nowhere"):
        assert act(server, 0, "restore", name).status_code == 400, name
    assert act(server, 0, "restore", "good").status_code == 200


def test_saving_replaces_a_link_and_never_writes_through_it(
    start: Callable[..., LiveServer], files: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").write_text("kept")
    (files / "link").symlink_to(tmp_path / "outside")
    server = start()
    complete(server)
    assert act(server, 0, "save", "link").status_code == 200
    assert (tmp_path / "outside").read_text() == "kept"
    assert not (files / "link").is_symlink()


def test_a_slot_of_another_model_is_refused(start: Callable[..., LiveServer], tmp_path: Path) -> None:
    first = start()
    complete(first)
    act(first, 0, "save", "chat")
    other = start(checkpoint=write_tiny_checkpoint("llama", tmp_path / "other", num_hidden_layers=1))
    answer = act(other, 0, "restore", "chat")
    assert answer.status_code == 400
    assert "another model" in answer.json()["error"]["message"]


def test_without_a_folder_it_is_not_supported(live: Live, tmp_path: Path) -> None:
    server = live(scripted_source("hi", tmp_path))
    for action in ("save", "restore", "erase"):
        answer = act(server, 0, action, "x")
        assert answer.status_code == 501
        wanted = "This server does not support slots action. Start it with `--slot-save-path`"
        assert answer.json()["error"]["message"] == wanted
    with pytest.raises(StartupError, match="--slot-save-path"):
        build_app(parse(["--slot-save-path", str(tmp_path / "nowhere")]), scripted_source("hi", tmp_path))


def test_a_caller_can_ask_to_fail_when_no_slot_is_free(live: Live, tmp_path: Path) -> None:
    source = scripted_source("the mill " * 100, tmp_path, info=SCRIPTED_MODEL, step_s=0.01)
    server = live(source, parse(["-np", "1"]))
    assert httpx2.get(server.url + "/slots?fail_on_no_slot=1").status_code == 200
    with httpx2.stream("POST", server.url + "/completion", json={"prompt": "Hi", "stream": True}, timeout=30) as running:
        lines = running.iter_lines()
        next(lines)
        answer = httpx2.get(server.url + "/slots?fail_on_no_slot=1")
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, "no slot available")
        assert httpx2.get(server.url + "/slots?fail_on_no_slot=0").status_code == 200
        assert httpx2.get(server.url + "/slots").status_code == 200

"""Where a model argument leads on this machine, and the store's own commands."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mlxcel.core.errors import StartupError
from mlxcel.runners.hub import default_root, list_models, locate, remove_model
from mlxcel.runners.hub.embedded import EmbeddedModel
from mlxcel.runners.hub.store import unfinished_folder


def write_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    save_file({"w": torch.ones(4)}, folder / "model.safetensors")
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the machine's own models."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("MLXCEL_MODELS_DIR", str(tmp_path / "store"))
    for name in ("MLXCEL_CACHE_DIR", "MLXCEL_DEFAULT_ORG", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


def refusal(model: str) -> str:
    with pytest.raises(StartupError) as caught:
        locate(model, offline=True)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_existing_paths(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    assert locate(str(folder)) == folder
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert locate("./a.gguf") == Path("a.gguf")


def test_folder_of_gguf_files(tmp_path: Path) -> None:
    folder = tmp_path / "ggufs"
    folder.mkdir()
    (folder / "a-Q4_0-00001-of-00002.gguf").write_bytes(b"GGUF")
    (folder / "a-Q4_0-00002-of-00002.gguf").write_bytes(b"GGUF")
    assert locate(str(folder)).name == "a-Q4_0-00001-of-00002.gguf"
    (folder / "b-Q8_0.gguf").write_bytes(b"GGUF")
    assert "holds 2 GGUF models" in refusal(str(folder))


def test_tag_picks_a_local_gguf(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "someone" / "m"
    folder.mkdir(parents=True)
    for name in ("m-Q4_0.gguf", "m-Q8_0.gguf"):
        (folder / name).write_bytes(b"GGUF")
    assert locate("someone/m:q8_0").name == "m-Q8_0.gguf"


def test_order_is_path_models_cache_store(tmp_path: Path) -> None:
    store = write_model(tmp_path / "store" / "someone" / "m")
    assert locate("someone/m", offline=True) == store
    snapshot = write_model(tmp_path / "hf" / "models--someone--m" / "snapshots" / "abc")
    (tmp_path / "hf" / "models--someone--m" / "refs").mkdir()
    (tmp_path / "hf" / "models--someone--m" / "refs" / "main").write_text("abc")
    assert locate("someone/m", offline=True) == snapshot
    assert locate("someone/m", offline=True, revision="abc") == snapshot
    local = write_model(tmp_path / "models" / "someone" / "m")
    assert locate("someone/m", offline=True) == local.relative_to(tmp_path)
    path = write_model(tmp_path / "someone" / "m")
    assert locate("someone/m", offline=True) == path.relative_to(tmp_path)


def test_incomplete_cache_entry_is_passed_over(tmp_path: Path) -> None:
    snapshot = write_model(tmp_path / "hf" / "models--someone--m" / "snapshots" / "main")
    (snapshot / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model-00001-of-00002.safetensors"}}')
    store = write_model(tmp_path / "store" / "someone" / "m")
    assert locate("someone/m", offline=True) == store


def test_bare_names_belong_to_the_default_organisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "mlx-community/m is not on this machine" in refusal("m")
    monkeypatch.setenv("MLXCEL_DEFAULT_ORG", "someone")
    folder = write_model(tmp_path / "store" / "someone" / "m")
    assert locate("m", offline=True) == folder


NEITHER = ["", "/nowhere/m", "./m", "../m", "~/nowhere", "m.gguf", "a/b/c", "a\\b", "a b", "../../etc/passwd", "x/..", "-m"]


@pytest.mark.parametrize("model", NEITHER)
def test_neither_path_nor_name(model: str) -> None:
    assert f"{model!r} does not exist, and is not a model name" in refusal(model)


def test_store_root_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_root() == tmp_path / "store"
    monkeypatch.setenv("MLXCEL_CACHE_DIR", str(tmp_path / "cache"))
    assert default_root() == tmp_path / "store"
    monkeypatch.delenv("MLXCEL_MODELS_DIR")
    assert default_root() == tmp_path / "cache"
    monkeypatch.delenv("MLXCEL_CACHE_DIR")
    assert default_root() == Path.home() / ".cache" / "mlxcel" / "models"


def test_listing(tmp_path: Path) -> None:
    assert list_models(tmp_path / "none") == []
    root = tmp_path / "store"
    for name in ("b/two", "a/one"):
        write_model(root / name)
    (root / "a" / "broken").mkdir()
    write_model(unfinished_folder(root, "a/three"))
    found = list_models(root)
    assert [model.repo_id for model in found] == ["a/one", "b/two"]
    assert found[0].size_bytes == sum(path.stat().st_size for path in (root / "a" / "one").iterdir())
    assert abs((datetime.now(UTC) - found[0].modified).total_seconds()) < 60
    entry = json.loads(json.dumps(found[0].as_json()))
    assert set(entry) == {"repo_id", "size_bytes", "path", "modified"}
    assert datetime.fromisoformat(entry["modified"]) == found[0].modified


def test_removal(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_model(root / "a" / "one")
    write_model(root / "a" / "two")
    (unfinished_folder(root, "a/one")).mkdir(parents=True)
    size_bytes = list_models(root)[0].size_bytes
    assert remove_model(root, "a/one") == size_bytes
    assert [model.repo_id for model in list_models(root)] == ["a/two"]
    assert not unfinished_folder(root, "a/one").exists()
    with pytest.raises(StartupError, match="has no model a/one"):
        remove_model(root, "a/one")
    remove_model(root, "a/two")
    assert not (root / "a").exists()


@pytest.mark.parametrize("name", ["../store", "a", "a/..", "/etc/x", "a/b/c", ".verified/x", ""])
def test_removal_stays_in_the_store(tmp_path: Path, name: str) -> None:
    write_model(tmp_path / "store" / "a" / "b")
    with pytest.raises(StartupError, match="not a model name"):
        remove_model(tmp_path / "store", name)
    assert list_models(tmp_path / "store")


def test_removal_does_not_follow_links(tmp_path: Path) -> None:
    outside = write_model(tmp_path / "outside")
    (tmp_path / "store" / "a").mkdir(parents=True)
    (tmp_path / "store" / "a" / "m").symlink_to(outside)
    assert list_models(tmp_path / "store") == []
    with pytest.raises(StartupError, match="has no model"):
        remove_model(tmp_path / "store", "a/m")
    assert outside.is_dir()


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddedModel:
    """A model in an importable package whose import would fail."""
    package = tmp_path / "path" / "pretend_model"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "m.gguf").write_bytes(b"GGUF and more")
    monkeypatch.syspath_prepend(tmp_path / "path")
    return EmbeddedModel("m", "pretend_model", "m.gguf", 13, hashlib.sha256(b"GGUF and more").hexdigest())


def test_packaged_model_is_checked_once(packaged: EmbeddedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packaged.find(tmp_path / "stamps")
    assert path.read_bytes() == b"GGUF and more"
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("hashed again"))
    assert packaged.find(tmp_path / "stamps") == path


def test_packaged_model_without_a_writable_home(packaged: EmbeddedModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert packaged.find(tmp_path / "file" / "stamps").name == "m.gguf"


@pytest.mark.parametrize("content", [b"GGUF and MORE", b"GGUF"])
def test_packaged_model_that_was_changed(packaged: EmbeddedModel, content: bytes, tmp_path: Path) -> None:
    packaged.find(tmp_path / "stamps")
    (tmp_path / "path" / "pretend_model" / "m.gguf").write_bytes(content)
    with pytest.raises(StartupError, match="is damaged; reinstall it"):
        packaged.find(tmp_path / "stamps")


def test_packaged_model_that_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="pip install no_such_package_here"):
        EmbeddedModel("m", "no_such_package_here", "m.gguf", 1, "").find(tmp_path)


@pytest.mark.model
def test_the_packaged_model_by_name(smollm2_path: Path) -> None:
    assert locate("smollm2-135m", offline=True) == smollm2_path

"""From the model argument of a command line to a folder or file on disk."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mlxcel.core.errors import StartupError
from mlxcel.runners.hub.download import Request, download_model
from mlxcel.runners.hub.embedded import SMOLLM2
from mlxcel.runners.hub.folder import gguf_models, is_complete, is_model
from mlxcel.runners.hub.hf_cache import cached_snapshot
from mlxcel.runners.hub.selection import chosen_ggufs
from mlxcel.runners.hub.store import default_root, is_repo_id, model_folder, stamp_folder, unfinished_folder

EMBEDDED_MODEL = SMOLLM2.name
_DEFAULT_ORGANISATION = "mlx-community"
_MAIN = "main"
_PATH_LIKE = re.compile(r"[~/.].*|.*\.(gguf|safetensors)|.*\\.*")


def locate(
    model: str,
    *,
    offline: bool = False,
    revision: str | None = None,
    token: str | None = None,
    store_root: Path | None = None,
) -> Path:
    """Find a model, downloading it when it is nowhere on this machine.

    Looked up in this order: the packaged model's name; an existing path; ``./models/NAME``; the Hugging Face cache; the
    store; the hub. A bare name means the organisation ``MLXCEL_DEFAULT_ORG`` (mlx-community). ``owner/name:TAG`` picks the
    GGUF file whose name contains the tag, such as Q4_K_M.

    Args:
        offline: never use the network; ``HF_HUB_OFFLINE`` has the same effect.
        revision: branch, tag or commit; main by default.
        token: for private models; ``HF_TOKEN`` by default.
        store_root: of the store; ``default_root()`` by default.

    Returns:
        A folder with ``config.json`` and safetensors, or a GGUF file.

    Raises:
        StartupError: there is no such model, it is incomplete, or it cannot be downloaded; one line.
    """
    root = store_root or default_root()
    if model == EMBEDDED_MODEL:
        return SMOLLM2.find(stamp_folder(root))
    path = Path(model).expanduser()
    if model and path.exists():
        return _usable(path, tag=None)
    name, _, tag = model.partition(":")
    if _PATH_LIKE.fullmatch(model) or not _is_model_name(name):
        raise StartupError(f"{model!r} does not exist, and is not a model name of the form owner/name")
    local = Path("models") / name
    if local.exists():
        return _usable(local, tag)
    return _usable(_fetched(_full_name(name), root, offline=offline, revision=revision, token=token, tag=tag), tag)


def download(
    model: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    store_root: Path | None = None,
    local_dir: Path | None = None,
    fresh: bool = False,
) -> Path:
    """Download a model even if it is elsewhere on this machine, and return its folder.

    Args:
        model: ``owner/name``, or a bare name; with ``:TAG``, the GGUF file whose name contains the tag.
        local_dir: where to put it instead of the store.
        fresh: download everything again; otherwise files that are complete are kept.

    Raises:
        StartupError: as ``locate``.
    """
    name, _, tag = model.partition(":")
    if not _is_model_name(name):
        raise StartupError(f"{model!r} is not a model name of the form owner/name")
    root = store_root or default_root()
    request = Request(_full_name(name), revision or _MAIN, token, tag, fresh)
    stored_as = _stored_name(request.repo_id, revision)
    target = local_dir or model_folder(root, stored_as)
    unfinished = local_dir.with_name(f".{local_dir.name}.unfinished") if local_dir else unfinished_folder(root, stored_as)
    download_model(request, target, unfinished)
    return target


def _stored_name(repo_id: str, revision: str | None) -> str:
    return repo_id if revision in (None, _MAIN) else f"{repo_id}@{str(revision).replace('/', '-')}"


def _fetched(repo_id: str, root: Path, *, offline: bool, revision: str | None, token: str | None, tag: str) -> Path:
    cached = cached_snapshot(repo_id, revision or _MAIN)
    if cached is not None and _holds(cached, tag):
        return cached
    stored = model_folder(root, _stored_name(repo_id, revision))
    if _holds(stored, tag):
        return stored
    if offline or os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise StartupError(f"{repo_id} is not on this machine, and offline mode forbids downloading it")
    return download(f"{repo_id}:{tag}", revision=revision, token=token, store_root=root)


def _holds(folder: Path, tag: str) -> bool:
    if tag:
        return any(tag.lower() in path.name.lower() for path in gguf_models(folder))
    return is_complete(folder)


def _is_model_name(name: str) -> bool:
    return is_repo_id(name if "/" in name else f"{_DEFAULT_ORGANISATION}/{name}")


def _full_name(name: str) -> str:
    if "/" in name:
        return name
    return f"{os.environ.get('MLXCEL_DEFAULT_ORG') or _DEFAULT_ORGANISATION}/{name}"


def _usable(path: Path, tag: str | None) -> Path:
    """A model folder as it is; of a folder of GGUF files one: with ``tag`` None the only one, else the one it selects."""
    if path.is_file() or (is_model(path) and not tag):
        return path
    found = [gguf.name for gguf in gguf_models(path)]
    if tag is not None:
        found = chosen_ggufs(found, tag)
    if len(found) > 1:
        raise StartupError(f"{path} holds {len(found)} GGUF models ({', '.join(found)}); name one of them")
    return path / found[0] if found else path  # opening it tells what is wrong

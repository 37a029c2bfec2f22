"""From the model argument of a command line to a folder or file on disk."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mlxcel.core.errors import StartupError
from mlxcel.runners.hub.download import download_model
from mlxcel.runners.hub.embedded import SMOLLM2
from mlxcel.runners.hub.folder import gguf_models, is_complete, is_model
from mlxcel.runners.hub.hf_cache import cached_snapshot
from mlxcel.runners.hub.store import default_root, is_repo_id, model_folder, stamp_folder

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
    if path.exists():
        return _usable(path, tag=None)
    name, _, tag = model.partition(":")
    if _PATH_LIKE.fullmatch(model) or not _is_model_name(name):
        raise StartupError(f"{model} does not exist, and is not a model name of the form owner/name")
    local = Path("models") / name
    if local.exists():
        return _usable(local, tag)
    return _usable(_fetched(_full_name(name), root, offline=offline, revision=revision, token=token, tag=tag), tag)


def _fetched(repo_id: str, root: Path, *, offline: bool, revision: str | None, token: str | None, tag: str) -> Path:
    cached = cached_snapshot(repo_id, revision or _MAIN)
    if cached is not None and _holds(cached, tag):
        return cached
    stored = model_folder(root, repo_id if revision in (None, _MAIN) else f"{repo_id}@{revision}")
    if _holds(stored, tag):
        return stored
    if offline or os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise StartupError(f"{repo_id} is not on this machine, and offline mode forbids downloading it")
    download_model(repo_id, root, stored, revision=revision or _MAIN, token=token, tag=tag)
    return stored


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
    """A model folder as it is; of a folder of GGUF files, the one that is meant."""
    if path.is_file() or (is_model(path) and not tag):
        return path
    found = [gguf for gguf in gguf_models(path) if (tag or "").lower() in gguf.name.lower()]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(gguf.name for gguf in found)
        raise StartupError(f"{path} holds {len(found)} GGUF models ({names}); name one of them")
    return path  # opening it tells what is wrong

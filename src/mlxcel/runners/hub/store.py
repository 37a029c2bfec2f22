"""mlxcel's own store of downloaded models: ``ROOT/owner/name``, one folder a model."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mlxcel.core.errors import StartupError
from mlxcel.runners.hub.folder import is_complete

_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@[\w.-]{1,96})?")
_UNFINISHED = ".unfinished"
_STAMPS = ".verified"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One downloaded model. ``modified`` is when its download was finished."""

    repo_id: str
    size_bytes: int
    path: Path
    modified: datetime

    def as_json(self) -> dict[str, str | int]:
        """The fields as ``mlxcel list --json`` prints them; the time is ISO 8601 in UTC."""
        modified = self.modified.isoformat(timespec="seconds").replace("+00:00", "Z")
        return {"repo_id": self.repo_id, "size_bytes": self.size_bytes, "path": str(self.path), "modified": modified}


def default_root() -> Path:
    """``MLXCEL_MODELS_DIR``, else ``MLXCEL_CACHE_DIR``, else ``~/.cache/mlxcel/models``."""
    configured = os.environ.get("MLXCEL_MODELS_DIR") or os.environ.get("MLXCEL_CACHE_DIR")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "mlxcel" / "models"


def is_repo_id(text: str) -> bool:
    """Whether ``text`` is ``owner/name``, optionally ``@revision``, and so safe as a path below the store."""
    return _REPO.fullmatch(text) is not None and ".." not in text


def model_folder(root: Path, repo_id: str) -> Path:
    """Where a model lies once it is complete. Raises StartupError when ``repo_id`` is not of the form owner/name."""
    if not is_repo_id(repo_id):
        raise StartupError(f"{repo_id!r} is not a model name of the form owner/name")
    return root / repo_id


def unfinished_folder(root: Path, repo_id: str) -> Path:
    """Where a download grows until it is complete."""
    return root / _UNFINISHED / model_folder(Path(), repo_id)


def stamp_folder(root: Path) -> Path:
    """Where digests that were checked are remembered."""
    return root / _STAMPS


def list_models(root: Path) -> list[StoredModel]:
    """Complete models in the store, by name. A store that does not exist is empty."""
    found = []
    for folder in sorted(root.glob("[!.]*/[!.]*")):
        if folder.is_dir() and not folder.is_symlink() and is_complete(folder):
            status = folder.stat()
            size_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            repo_id = f"{folder.parent.name}/{folder.name}"
            found.append(StoredModel(repo_id, size_bytes, folder, datetime.fromtimestamp(int(status.st_mtime), UTC)))
    return found


def remove_model(root: Path, repo_id: str) -> int:
    """Delete a model, finished or not, and return the bytes freed.

    Raises:
        StartupError: the name is malformed, or the store has no such model.
    """
    folders = [model_folder(root, repo_id), unfinished_folder(root, repo_id)]
    present = [folder for folder in folders if folder.is_dir() and not folder.is_symlink()]
    if not present:
        raise StartupError(f"the store {root} has no model {repo_id}; `mlxcel list` shows what it has")
    freed_bytes = 0
    for folder in present:
        freed_bytes += sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
        shutil.rmtree(folder)
        if not any(folder.parent.iterdir()):
            folder.parent.rmdir()
    return freed_bytes

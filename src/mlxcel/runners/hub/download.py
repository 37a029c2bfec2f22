"""Downloads a model from a Hugging Face hub, one file after another, resuming where it was interrupted."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import WeakFileLock, build_hf_headers, tqdm

from mlxcel.core.errors import StartupError
from mlxcel.runners.hub.folder import INDEX_NAME
from mlxcel.runners.hub.selection import wanted_files

_PUBLIC_HUB = "https://huggingface.co"
_COMMIT_FILE = ".commit"
_PARTIAL_SUFFIX = ".part"


@dataclass(frozen=True, slots=True)
class Request:
    """What to download.

    Attributes:
        revision: branch, tag or commit.
        token: None uses ``HF_TOKEN`` or the one that ``hf auth login`` stored.
        tag: text that the name of the wanted GGUF file contains; empty lets the repository decide.
        fresh: download everything again, whatever is there already.
    """

    repo_id: str
    revision: str = "main"
    token: str | None = None
    tag: str = ""
    fresh: bool = False


class _QuietBar(tqdm):  # type: ignore[misc]  # huggingface_hub's class is untyped
    """A progress bar that shows nothing."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **{**options, "disable": True})


def download_model(request: Request, target: Path, unfinished: Path) -> None:
    """Download a model to the folder ``target``, which appears, or changes, only when everything has arrived.

    Other files that are in ``target`` already stay.

    Args:
        unfinished: folder beside it where files are collected, and from which an interrupted download goes on.

    Raises:
        StartupError: unknown or private model, unreachable hub, no usable files, damaged data, or no space; one line.
    """
    endpoint = _endpoint()
    with _explained(request, endpoint):
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(unfinished.with_name(f"{unfinished.name}.lock")):
            _collect(request, endpoint, target, unfinished)
            _publish(unfinished, target)


def _collect(request: Request, endpoint: str, target: Path, unfinished: Path) -> None:
    token = request.token or os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    api: Any = HfApi(endpoint=endpoint, token=token)
    commit = str(api.repo_info(request.repo_id, revision=request.revision).sha)
    listing = api.list_repo_tree(request.repo_id, recursive=True, revision=commit)
    files = {entry.path: entry for entry in listing if isinstance(entry, RepoFile)}
    names = wanted_files(files, request.tag)
    if not names:
        named = f" named {request.tag}" if request.tag else ""
        raise StartupError(f"{request.repo_id} has no safetensors or GGUF weights{named}")
    if request.fresh:
        shutil.rmtree(unfinished, ignore_errors=True)
    _prepare(unfinished, None if request.fresh else target, commit)
    headers = build_hf_headers(token=token)
    for name in names:
        url = hf_hub_url(request.repo_id, name, revision=commit, endpoint=endpoint)
        _fetch(url, headers, files[name], unfinished / name)


def _prepare(unfinished: Path, target: Path | None, commit: str) -> None:
    """Keep what an earlier attempt, or the target, has of this very commit; anything else is dropped."""
    marker = unfinished / _COMMIT_FILE
    if not marker.is_file() or marker.read_text(encoding="utf-8") != commit:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        marker.write_text(commit, encoding="utf-8")
    if target is None:
        return
    kept = target / _COMMIT_FILE
    if kept.is_file() and kept.read_text(encoding="utf-8") == commit:
        for path in target.iterdir():
            if path.is_file() and not (unfinished / path.name).exists():
                _link(path, unfinished / path.name)


def _link(source: Path, copy: Path) -> None:
    """A second name for the same bytes, or a copy where the file system has no such thing."""
    try:
        os.link(source, copy)
    except OSError:
        shutil.copy2(source, copy)


def _fetch(url: str, headers: dict[str, str], file: Any, path: Path) -> None:
    """One file, unless it is there at its full size. Large files carry a digest, which is checked."""
    if path.is_file() and path.stat().st_size == file.size:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + _PARTIAL_SUFFIX)
    bar = _QuietBar if os.environ.get("MLXCEL_NO_PROGRESS") else tqdm
    with partial.open("ab") as stream:
        http_get(
            url,
            stream,
            resume_size=stream.tell(),
            headers=headers,
            expected_size=file.size,
            displayed_filename=file.path,
            tqdm_class=bar,
        )
    if file.lfs is not None:
        with partial.open("rb") as stream:
            arrived = hashlib.file_digest(stream, "sha256").hexdigest()
        if arrived != file.lfs.sha256:
            partial.unlink()
            raise StartupError(f"{file.path} arrived damaged (its SHA-256 is wrong); try again")
    partial.replace(path)


def _publish(unfinished: Path, target: Path) -> None:
    """Put a finished download in its place. Of a folder that is there already, only the model's own files change."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished.rename(target)
        return
    if not (unfinished / INDEX_NAME).exists():
        (target / INDEX_NAME).unlink(missing_ok=True)  # of an earlier version that was in several parts
    for path in [path for path in unfinished.rglob("*") if path.is_file()]:
        place = target / path.relative_to(unfinished)
        place.parent.mkdir(parents=True, exist_ok=True)
        path.replace(place)
    shutil.rmtree(unfinished)


def _endpoint() -> str:
    """``HF_ENDPOINT``. Raises StartupError for plain HTTP to another machine, which would show the token to the network."""
    endpoint = os.environ.get("HF_ENDPOINT", _PUBLIC_HUB).rstrip("/")
    parts = urlsplit(endpoint)
    loopback = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not loopback and not os.environ.get("MLXCEL_ALLOW_INSECURE_ENDPOINT"):
        raise StartupError(
            f"HF_ENDPOINT {endpoint} is not https; set MLXCEL_ALLOW_INSECURE_ENDPOINT=1 to use it all the same"
        )
    return endpoint


@contextmanager
def _explained(request: Request, endpoint: str) -> Iterator[None]:
    """Turns the hub client's errors into one line each."""
    repo_id = request.repo_id
    try:
        yield
    except GatedRepoError as error:
        raise StartupError(f"{repo_id} is gated: accept its terms on {endpoint}/{repo_id} and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise StartupError(
            f"{endpoint} has no model {repo_id}, or it is private and HF_TOKEN gives no access to it"
        ) from error
    except RevisionNotFoundError as error:
        raise StartupError(f"{repo_id} has no revision {request.revision}") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        hint = "check HF_TOKEN" if status in (401, 403) else "what has arrived is kept, try again later"
        raise StartupError(f"{endpoint} answered {status} for {repo_id}; {hint}") from error
    except (httpx2.HTTPError, ConnectionError) as error:
        why = type(error).__name__
        raise StartupError(f"cannot reach {endpoint} to download {repo_id} ({why}); what has arrived is kept") from error
    except OSError as error:
        raise StartupError(f"cannot store {repo_id}: {error.strerror or error}") from error

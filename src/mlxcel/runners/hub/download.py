"""Downloads a model from a Hugging Face hub into the store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import tqdm

from mlxcel.core.errors import StartupError
from mlxcel.runners.hub.store import unfinished_folder

_SUFFIXES = {".safetensors", ".json", ".txt", ".model", ".jinja", ".gguf"}
_PUBLIC_HUB = "https://huggingface.co"
# Sentence-transformers keep pooling and projection layers in numbered folders.
_SUBFOLDER = "[0-9]_*"
_PREFERRED_QUANTISATIONS = ("q4_k_m", "q4_0", "q5_k_m", "q8_0")


class _QuietBar(tqdm):  # type: ignore[misc]  # huggingface_hub's class is untyped
    """A progress bar that shows nothing."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **{**options, "disable": True})


def download_model(repo_id: str, root: Path, target: Path, *, revision: str, token: str | None, tag: str) -> None:
    """Download a model to ``target``, which appears only when it is complete. An interrupted download is resumed.

    Args:
        root: of the store, where the unfinished download is kept.
        tag: text that the name of the wanted GGUF file contains; empty lets the repository decide.

    Raises:
        StartupError: unknown or private model, unreachable hub, no usable files, or no space; one line.
    """
    endpoint = _endpoint()
    unfinished = unfinished_folder(root, target.relative_to(root).as_posix())
    bar = _QuietBar if os.environ.get("MLXCEL_NO_PROGRESS") else tqdm
    with _explained(repo_id, revision, endpoint):
        api = HfApi(endpoint=endpoint, token=token or os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN"))
        commit = api.repo_info(repo_id, revision=revision).sha
        names = wanted_files(api.list_repo_files(repo_id, revision=commit), tag)
        if not names:
            raise StartupError(f"{repo_id} has no safetensors or GGUF weights{f' named {tag}' if tag else ''}")
        if target.is_dir() and not unfinished.exists():  # something is missing from it
            unfinished.parent.mkdir(parents=True, exist_ok=True)
            target.rename(unfinished)
        for name in names:
            hf_hub_download(
                repo_id, name, revision=commit, local_dir=unfinished, endpoint=endpoint, token=api.token, tqdm_class=bar
            )
    _publish(unfinished, target)


def wanted_files(names: Iterable[str], tag: str) -> list[str]:
    """The files of a repository that serve the model: weights of one kind, configuration, tokenizer, templates.

    Names that would leave the folder, hidden files, and anything that could hold code are left out.
    """
    safe = sorted(name for name in names if _is_safe(name))
    ggufs = [name for name in safe if name.endswith(".gguf")]
    others = [name for name in safe if not name.endswith(".gguf")]
    has_safetensors = any(name.endswith(".safetensors") for name in others)
    if has_safetensors and not tag:
        sharded = [name for name in others if fnmatch(name, "model*.safetensors")]
        return [name for name in others if not (sharded and fnmatch(name, "consolidated*"))]
    chosen = _chosen_ggufs(ggufs, tag)
    return [*(name for name in others if not name.endswith(".safetensors")), *chosen] if chosen else []


def _is_safe(name: str) -> bool:
    path = PurePosixPath(name)
    if path.suffix not in _SUFFIXES or "\\" in name or path.is_absolute():
        return False
    if any(part.startswith(".") for part in path.parts):
        return False
    return len(path.parts) == 1 or (len(path.parts) == 2 and fnmatch(path.parts[0], _SUBFOLDER))


def _chosen_ggufs(names: list[str], tag: str) -> list[str]:
    """All parts of one GGUF model: the one the tag names, else the first quantisation that is preferred, else the first."""
    models = [name for name in names if "mmproj" not in name.lower()]
    for wanted in (tag.lower(),) if tag else (*_PREFERRED_QUANTISATIONS, ""):
        matching = [name for name in models if wanted in name.lower()]
        if matching:
            stem = matching[0].removesuffix(".gguf").split("-00001-of-")[0]
            return [name for name in matching if name.startswith(stem)]
    return []


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
def _explained(repo_id: str, revision: str, endpoint: str) -> Iterator[None]:
    """Turns the hub client's errors into one line each."""
    try:
        yield
    except GatedRepoError as error:
        raise StartupError(f"{repo_id} is gated: accept its terms on {endpoint}/{repo_id} and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise StartupError(
            f"{endpoint} has no model {repo_id}, or it is private and HF_TOKEN gives no access to it"
        ) from error
    except RevisionNotFoundError as error:
        raise StartupError(f"{repo_id} has no revision {revision}") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        hint = "; check HF_TOKEN" if status in (401, 403) else ""
        raise StartupError(f"{endpoint} answered {status} for {repo_id}{hint}") from error
    except (httpx2.HTTPError, ConnectionError) as error:
        raise StartupError(
            f"cannot reach {endpoint} to download {repo_id} ({type(error).__name__}); what has arrived is kept and resumed"
        ) from error
    except OSError as error:
        raise StartupError(f"cannot store {repo_id}: {error.strerror or type(error).__name__}") from error


def _publish(unfinished: Path, target: Path) -> None:
    """Move a complete download to its place in one step. If another process was faster, its result stays."""
    shutil.rmtree(unfinished / ".cache", ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        unfinished.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(unfinished)

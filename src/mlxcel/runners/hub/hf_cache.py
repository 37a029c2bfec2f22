"""Reads the Hugging Face cache, which other programs fill. Nothing is written to it.

Layout: ``models--owner--name/{refs,snapshots}``, https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """``HF_HUB_CACHE``, else ``HF_HOME/hub``, else ``~/.cache/huggingface/hub``."""
    if configured := os.environ.get("HF_HUB_CACHE"):
        return Path(configured).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "huggingface" / "hub"


def cached_snapshot(repo_id: str, revision: str) -> Path | None:
    """The folder of a revision (branch, tag or commit), complete or not; None when the cache has none."""
    repository = cache_root() / f"models--{repo_id.replace('/', '--')}"
    reference = repository / "refs" / revision
    commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision
    snapshot = repository / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None

"""``mlxcel list``, ``rm`` and ``download``: the models kept on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from mlxcel.config.values import human_bytes
from mlxcel.core.errors import StartupError


def run_list(arguments: Sequence[str]) -> int:
    """Print the downloaded models."""
    from mlxcel.runners.hub.store import list_models

    parser = _parser("list", "List the downloaded models.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="print names only")
    parser.add_argument("-v", "--verbose", action="store_true", help="print paths too")
    options = parser.parse_args(list(arguments))
    models = list_models(_root(options))
    if options.json:
        print(json.dumps([model.as_json() for model in models], indent=2))
        return 0
    for model in models:
        if options.quiet:
            print(model.repo_id)
        else:
            where = f"  {model.path}" if options.verbose else ""
            print(f"{model.repo_id:<48} {human_bytes(model.size_bytes):>10}  {model.modified:%Y-%m-%d}{where}")
    return 0


def run_rm(arguments: Sequence[str]) -> int:
    """Delete a downloaded model."""
    from mlxcel.runners.hub.store import remove_model

    parser = _parser("rm", "Delete a downloaded model.")
    parser.add_argument("repo", help="owner/name")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    options = parser.parse_args(list(arguments))
    if not options.yes:
        if not sys.stdin.isatty():
            raise StartupError("rm needs --yes when there is no terminal to ask on")
        if input(f"Delete {options.repo}? [y/N] ").strip().lower() not in ("y", "yes"):
            return 1
    print(f"freed {human_bytes(remove_model(_root(options), options.repo))}")
    return 0


def run_download(arguments: Sequence[str]) -> int:
    """Download a model without serving it."""
    from mlxcel.runners.hub import download

    parser = _parser("download", "Download a model.")
    parser.add_argument("repo", help="owner/name")
    parser.add_argument("--local-dir", type=Path, metavar="DIR", help="copy the files here")
    parser.add_argument("--revision", help="branch, tag or commit")
    parser.add_argument("--token", help="hub access token (default: HF_TOKEN)")
    parser.add_argument("--force", action="store_true", help="download again even if it is there")
    options = parser.parse_args(list(arguments))
    path = download(
        options.repo,
        revision=options.revision,
        token=options.token,
        store_root=_root(options),
        local_dir=options.local_dir,
        fresh=options.force,
    )
    print(path)
    return 0


def _parser(command: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"mlxcel {command}", description=description)
    parser.add_argument("--models-dir", type=Path, metavar="DIR", help="the store (default: ~/.cache/mlxcel/models)")
    return parser


def _root(options: argparse.Namespace) -> Path:
    from mlxcel.runners.hub.store import default_root

    root: Path = options.models_dir or default_root()
    return root

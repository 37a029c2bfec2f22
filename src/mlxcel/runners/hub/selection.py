"""Which files of a repository are downloaded."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import PurePosixPath

_SUFFIXES = {".safetensors", ".json", ".txt", ".model", ".jinja", ".gguf"}
# Sentence-transformers keep pooling and projection layers in numbered folders.
_SUBFOLDER = "[0-9]_*"
_PREFERRED_QUANTISATIONS = ("q4_k_m", "q4_0", "q5_k_m", "q8_0")


def wanted_files(names: Iterable[str], tag: str) -> list[str]:
    """The files of a repository that serve the model: weights of one kind, configuration, tokenizer, templates.

    Names that would leave the folder, hidden files, and anything that could hold code are left out.

    Args:
        tag: text that the name of the wanted GGUF file contains; empty prefers safetensors, then a common quantisation.

    Returns:
        Names in order; empty when no weights qualify.
    """
    safe = sorted(name for name in names if _is_safe(name))
    ggufs = [name for name in safe if name.endswith(".gguf")]
    others = [name for name in safe if not name.endswith(".gguf")]
    has_safetensors = any(name.endswith(".safetensors") for name in others)
    if has_safetensors and not tag:
        has_model_files = any(fnmatch(name, "model*.safetensors") for name in others)
        return [name for name in others if not (has_model_files and fnmatch(name, "consolidated*"))]
    chosen = chosen_ggufs(ggufs, tag)
    return [*(name for name in others if not name.endswith(".safetensors")), *chosen] if chosen else []


def _is_safe(name: str) -> bool:
    path = PurePosixPath(name)
    if path.suffix not in _SUFFIXES or "\\" in name or path.is_absolute():
        return False
    if any(part.startswith(".") for part in path.parts):
        return False
    return len(path.parts) == 1 or (len(path.parts) == 2 and fnmatch(path.parts[0], _SUBFOLDER))


def chosen_ggufs(names: list[str], tag: str) -> list[str]:
    """All parts of one GGUF model: the one the tag names; without a tag a quantisation that is common, else the first.

    Projectors of vision models are not models. Empty when none qualifies.
    """
    models = [name for name in names if "mmproj" not in name.lower()]
    for wanted in (tag.lower(),) if tag else (*_PREFERRED_QUANTISATIONS, ""):
        matching = [name for name in models if wanted in name.lower()]
        if matching:
            stem = matching[0].removesuffix(".gguf").split("-00001-of-")[0]
            return [name for name in matching if name.startswith(stem)]
    return []

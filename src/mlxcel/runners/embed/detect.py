"""Tells embedders and rerankers from chat models, by the JSON files of a checkpoint alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxcel.core.errors import StartupError
from mlxcel.core.vectors import RerankKind
from mlxcel.runners.embed.layout import module_types
from mlxcel.runners.hub.folder import read_json

ENCODERS = ("bert", "xlm-roberta", "modernbert")
_CLASSIFIERS = (*ENCODERS, "xlm_roberta")
LATE_INTERACTION = "colqwen2"
SIGLIP_TEXT = ("siglip", "siglip_text_model")
_ALWAYS = (*ENCODERS, "siglip")
_ARCHITECTURES = (
    "BertModel",
    "XLMRobertaModel",
    "ModernBertModel",
    "SiglipModel",
    "SiglipTextModel",
    "LlamaBidirectionalModel",
    "Lfm2BidirectionalModel",
    "LlamaNemotronVLModel",
    "ColIdefics3",
    "ColQwen2_5",
    "ColQwen2ForRetrieval",
)
# Families that an Embedder may belong to, and those that look both ways although their own mask is causal.
FAMILIES = (
    *_ALWAYS,
    *SIGLIP_TEXT,
    "gemma3_text",
    "qwen3",
    "llama",
    "llama_bidirec",
    "ministral3",
    "lfm2",
    LATE_INTERACTION,
)
BIDIRECTIONAL = ("llama", "llama_bidirec", "ministral3", "lfm2")


@dataclass(frozen=True, slots=True)
class Embedder:
    """An embedding checkpoint of a model type."""

    family: str


@dataclass(frozen=True, slots=True)
class Reranker:
    """A reranking checkpoint."""

    kind: RerankKind
    family: str


def detect(path: Path) -> Embedder | Reranker | None:
    """What a checkpoint of ``-m`` serves besides generation; None for a generating model.

    Raises:
        StartupError: an embedding layout on a model type that cannot be served; the message names it.
    """
    if not path.is_dir():
        return None
    config = read_json(path / "config.json")
    family, architecture = _names(config)
    if architecture.endswith("ForSequenceClassification"):
        return Reranker("sequence_classifier", _encoder_name(family)) if family in _CLASSIFIERS else None
    if not _is_embedder(path, config, family, architecture):
        return None
    if family not in FAMILIES:
        raise StartupError(f"the checkpoint has an embedding layout, but embeddings of model type {family!r} are not served")
    return Embedder(family)


def embedder_of(path: Path) -> Embedder:
    """The checkpoint of ``--embedding-model``.

    Raises:
        StartupError: it is no embedding checkpoint.
    """
    found = detect(path)
    if not isinstance(found, Embedder):
        raise StartupError("--embedding-model: the checkpoint is not an embedding model")
    return found


def reranker_of(path: Path) -> Reranker:
    """The checkpoint of ``--reranker-model``: a sequence classifier, or a generating model that judges.

    Raises:
        StartupError: it is neither.
    """
    config = read_json(path / "config.json") if path.is_dir() else {}
    family, architecture = _names(config)
    if architecture.endswith("ForSequenceClassification") and family in _CLASSIFIERS:
        return Reranker("sequence_classifier", _encoder_name(family))
    if family == "qwen3" and not architecture.endswith("ForSequenceClassification"):
        return Reranker("generative_text", family)
    raise StartupError(f"Unsupported reranker model type {family!r}")


def _is_embedder(path: Path, config: Mapping[str, Any], family: str, architecture: str) -> bool:
    if family in _ALWAYS or architecture in _ARCHITECTURES:
        return True
    if architecture == "Gemma3TextModel" and config.get("use_bidirectional_attention"):
        return True
    if architecture == "Ministral3Model" and config.get("is_causal") is False:
        return True
    if any(kind.endswith(".Pooling") for kind in module_types(path)):
        return True
    return (path / "1_Pooling" / "config.json").is_file()


def _names(config: Mapping[str, Any]) -> tuple[str, str]:
    """Model type and first architecture."""
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else ""
    return str(config.get("model_type") or ""), str(first)


def _encoder_name(family: str) -> str:
    return family.replace("_", "-")

"""The table of GGUF architectures.

The facts are those of llama.cpp's converter, whose key and tensor names every entry is written against.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlxcel.runners.weights.gguf.dense_families import DENSE_FAMILIES, MISTRAL
from mlxcel.runners.weights.gguf.expert_families import EXPERT_FAMILIES, MIXTRAL
from mlxcel.runners.weights.gguf.family import Family
from mlxcel.runners.weights.gguf.metadata import Metadata
from mlxcel.runners.weights.gguf.older_families import FALCON_40B, OLDER_FAMILIES
from mlxcel.runners.weights.gguf.recurrent_families import RECURRENT_FAMILIES

FAMILIES: Mapping[str, Family] = {**DENSE_FAMILIES, **EXPERT_FAMILIES, **RECURRENT_FAMILIES, **OLDER_FAMILIES}


def family_of(metadata: Metadata) -> Family | None:
    """The entry for a file; None when its architecture is not supported. llama.cpp calls Mistral and Mixtral llama, too."""
    if metadata.architecture == "llama":
        if metadata.get("expert_count"):
            return MIXTRAL
        if metadata.get("attention.sliding_window"):
            return MISTRAL
    if "blk.0.attn_norm_2.weight" in metadata.tensors and metadata.architecture == "falcon":
        return FALCON_40B
    return FAMILIES.get(metadata.architecture)

"""From a GGUF file to a Hugging Face configuration and to recipes for Hugging Face tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mlxcel.core.errors import StartupError
from mlxcel.runners.weights.gguf_config import head_dim
from mlxcel.runners.weights.gguf_families import family_of
from mlxcel.runners.weights.gguf_family import COMMON_FIELDS, COMMON_NAMES, TOP_NAMES, Family
from mlxcel.runners.weights.gguf_file import GgufFile, GgufTensor
from mlxcel.runners.weights.gguf_metadata import Metadata
from mlxcel.runners.weights.gguf_recipes import Part, Recipe, RowOrder, grouped_qkv, unpermuted, unshifted

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
# Rotation frequencies are read as configuration.
_NOT_WEIGHTS = re.compile(r"(blk\.\d+\.)?(rope_freqs|rope_factors_long|rope_factors_short|attn_rot_embd)\.weight")
_TOKENIZER_FIELDS = {
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}
_END_OF_GENERATION = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


@dataclass(frozen=True, slots=True)
class Description:
    """What a GGUF file holds, in Hugging Face terms."""

    config: dict[str, Any]
    generation_config: dict[str, Any]
    recipes: dict[str, Recipe]


def describe(file: GgufFile) -> Description:
    """Translate a file's metadata and tensor directory.

    Raises:
        StartupError: the architecture is not supported, or the file lacks or has unknown keys or tensors.
    """
    metadata = Metadata(file)
    family = family_of(metadata)
    if family is None:
        raise StartupError(f"{file.path}: the GGUF architecture {metadata.architecture!r} is not supported")
    config = _config(metadata, family)
    recipes = _Translator(file, metadata, family, layer_count=config.get("num_hidden_layers")).recipes()
    return Description(config, _generation_config(metadata), recipes)


def _config(metadata: Metadata, family: Family) -> dict[str, Any]:
    keys = {field: key for field, key in {**COMMON_FIELDS, **family.fields}.items() if key is not None}
    config = {"model_type": family.model_type, **metadata.present(keys), **family.fixed}
    config["vocab_size"] = metadata.shape("token_embd.weight")[0]
    config["tie_word_embeddings"] = "output.weight" not in metadata.tensors
    tokens = {field: metadata.top(key) for field, key in _TOKENIZER_FIELDS.items()}
    return {**config, **{field: token for field, token in tokens.items() if token is not None}, **family.derived(metadata)}


def _generation_config(metadata: Metadata) -> dict[str, Any]:
    ends = [token for key in _END_OF_GENERATION if (token := metadata.top(key)) is not None]
    return {"eos_token_id": list(dict.fromkeys(ends))} if ends else {}


class _Translator:
    """Finds the Hugging Face tensors that a file's tensors make up.

    Args:
        layer_count: blocks from this one on predict further tokens and are left out; None keeps all.
    """

    def __init__(self, file: GgufFile, metadata: Metadata, family: Family, layer_count: int | None) -> None:
        self._file = file
        self._family = family
        self._layer_count = layer_count
        self._names = {**COMMON_NAMES, **family.names}
        self._top_names = {**TOP_NAMES, **family.names}
        self._merged = {source for sources, _ in family.merges.values() for source in sources}
        self._head_dim = head_dim(metadata) if metadata.get("attention.head_count") else 0  # 0: no attention at all

    def recipes(self) -> dict[str, Recipe]:
        recipes: dict[str, Recipe] = {}
        unknown = []
        layers: dict[int, set[str]] = {}
        for tensor in self._file.tensors.values():
            if _NOT_WEIGHTS.fullmatch(tensor.name):
                continue
            block = _BLOCK.fullmatch(tensor.name)
            key = block[2] if block else tensor.name
            layer = int(block[1]) if block else None
            if layer is not None:
                if self._layer_count is not None and layer >= self._layer_count:
                    continue
                layers.setdefault(layer, set()).add(key)
            if key in self._merged:
                continue
            made = dict(self._single(tensor, layer, key))
            if not made:
                unknown.append(tensor.name)
            recipes |= made
        if unknown:
            raise StartupError(f"{self._file.path} has tensors that are not understood, first {unknown[0]}")
        for layer, keys in layers.items():
            recipes |= self._merges(layer, keys)
        return recipes

    def _single(self, tensor: GgufTensor, layer: int | None, key: str) -> Iterator[tuple[str, Recipe]]:
        """The Hugging Face tensors that one GGUF tensor makes on its own."""
        target = self._target(layer, key)
        if target is None:
            yield from self._split(tensor, layer, key)
        elif "{expert}" in target:
            for expert in range(tensor.shape[0]):
                yield target.replace("{expert}", str(expert)), Recipe((Part(tensor.name, index=expert),))
        else:
            combine = self._family.changes.get(key)
            if self._family.shifted_norms and key.endswith("norm.weight"):
                combine = unshifted
            yield target, Recipe((Part(tensor.name, order=self._order(key, tensor)),), combine)

    def _target(self, layer: int | None, key: str) -> str | None:
        names = self._top_names if layer is None else self._names
        prefix = "" if layer is None else self._family.layer.replace("{layer}", str(layer))
        if key in names:
            return prefix + names[key]
        stem, _, suffix = key.rpartition(".")
        return f"{prefix}{names[stem]}.{suffix}" if stem in names else None

    def _split(self, tensor: GgufTensor, layer: int | None, key: str) -> Iterator[tuple[str, Recipe]]:
        """Tensors that the converter may fuse although the Hugging Face checkpoint has them apart."""
        stem, _, suffix = key.rpartition(".")
        if stem == "attn_qkv":
            value_rows = self._rows_of_values(tensor)
            query_rows = tensor.shape[0] - 2 * value_rows
            stops = (0, query_rows, query_rows + value_rows, query_rows + 2 * value_rows)
            for index, name in enumerate(("attn_q", "attn_k", "attn_v")):
                part_key = f"{name}.{suffix}"
                rows = (stops[index], stops[index + 1])
                order = self._order(part_key, tensor)
                yield str(self._target(layer, part_key)), Recipe((Part(tensor.name, rows=rows, order=order),))
        elif stem == "ffn_gate_up_exps":
            half = tensor.shape[1] // 2
            for expert in range(tensor.shape[0]):
                for name, rows in (("ffn_gate_exps", (0, half)), ("ffn_up_exps", (half, 2 * half))):
                    target = str(self._target(layer, f"{name}.{suffix}")).replace("{expert}", str(expert))
                    yield target, Recipe((Part(tensor.name, index=expert, rows=rows),))

    def _rows_of_values(self, tensor: GgufTensor) -> int:
        output = self._file.tensors[tensor.name.replace("attn_qkv", "attn_output").replace(".bias", ".weight")]
        return (tensor.shape[0] - output.shape[-1]) // 2

    def _order(self, key: str, tensor: GgufTensor) -> RowOrder | None:
        stem = key.rpartition(".")[0]
        if self._family.permuted and stem in ("attn_q", "attn_k"):
            return unpermuted(self._head_dim)
        if self._family.fused_order and stem == "attn_qkv":
            values = self._rows_of_values(tensor)
            return grouped_qkv((tensor.shape[0] - 2 * values) // self._head_dim, values // self._head_dim)
        return None

    def _merges(self, layer: int, keys: set[str]) -> Iterator[tuple[str, Recipe]]:
        prefix = self._family.layer.replace("{layer}", str(layer))
        for target, (sources, combine) in self._family.merges.items():
            if keys.issuperset(sources):
                yield prefix + target, Recipe(tuple(Part(f"blk.{layer}.{source}") for source in sources), combine)

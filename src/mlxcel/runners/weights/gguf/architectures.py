"""From a GGUF file to a Hugging Face configuration and to recipes for Hugging Face tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mlxcel.core.errors import StartupError
from mlxcel.runners.weights.combine import unshifted
from mlxcel.runners.weights.gguf.blocks import can_decode
from mlxcel.runners.weights.gguf.families import family_of
from mlxcel.runners.weights.gguf.family import COMMON_FIELDS, COMMON_NAMES, TOP_NAMES, Family
from mlxcel.runners.weights.gguf.file import GgufTensor
from mlxcel.runners.weights.gguf.metadata import Metadata
from mlxcel.runners.weights.gguf.parts import GgufParts
from mlxcel.runners.weights.gguf.recipes import Order, Part, Recipe

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
# Rotation frequencies are read as configuration.
_NOT_WEIGHTS = re.compile(r"(blk\.\d+\.)?(rope_freqs|rope_factors_long|rope_factors_short|attn_rot_embd)\.weight")
_TOKENIZER_FIELDS = {
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}
_NEEDED = ("block_count", "embedding_length")
_END_OF_GENERATION = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


@dataclass(frozen=True, slots=True)
class Description:
    """What a GGUF file holds, in Hugging Face terms."""

    config: dict[str, Any]
    generation_config: dict[str, Any]
    recipes: dict[str, Recipe]


def describe(file: GgufParts) -> Description:
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
    for key in _NEEDED:
        metadata.need(key)
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

    def __init__(self, file: GgufParts, metadata: Metadata, family: Family, layer_count: int | None) -> None:
        self._file = file
        self._family = family
        self._layer_count = layer_count
        self._names = {**COMMON_NAMES, **family.names}
        self._top_names = {**TOP_NAMES, **family.names}
        self._orders = family.orders(metadata)
        self._column_orders = family.column_orders(metadata)
        self._merged = {source for sources, _ in family.merges.values() for source in sources}

    def recipes(self) -> dict[str, Recipe]:
        recipes: dict[str, Recipe] = {}
        layers: dict[int, set[str]] = {}
        for tensor in self._file.tensors.values():
            block = _BLOCK.fullmatch(tensor.name)
            layer, key = (int(block[1]), block[2]) if block else (None, tensor.name)
            if _NOT_WEIGHTS.fullmatch(tensor.name) or self._is_beyond(layer):
                continue
            if not can_decode(tensor.kind):
                raise StartupError(f"{self._file.path}: {tensor.name} is of type {tensor.kind.name}, which is not supported")
            if layer is not None:
                layers.setdefault(layer, set()).add(key)
            if key not in self._merged:
                recipes |= self._alone(tensor, layer, key)
        for layer, keys in layers.items():
            recipes |= self._merges(layer, keys)
        return recipes

    def _is_beyond(self, layer: int | None) -> bool:
        return layer is not None and self._layer_count is not None and layer >= self._layer_count

    def _alone(self, tensor: GgufTensor, layer: int | None, key: str) -> dict[str, Recipe]:
        """The Hugging Face tensors that one GGUF tensor makes on its own."""
        target = self._target(layer, key)
        if target is None:
            recipes = dict(self._split(tensor, layer, key))
            if not recipes:
                raise StartupError(f"{self._file.path} has a tensor that is not understood: {tensor.name}")
            return recipes
        if "{expert}" in target:
            experts = range(tensor.shape[0])
            return {target.replace("{expert}", str(expert)): Recipe((Part(tensor.name, expert),)) for expert in experts}
        combine = self._family.changes.get(key)
        if self._family.shifted_norms and key.endswith("norm.weight") and not key.startswith("ssm_"):
            combine = unshifted
        columns = self._column_orders.get(key.rpartition(".")[0])
        return {target: Recipe((Part(tensor.name),), self._order(key), combine, columns)}

    def _target(self, layer: int | None, key: str) -> str | None:
        names = self._top_names if layer is None else self._names
        prefix = self._prefix(layer)
        if key in names:
            return prefix + names[key]
        stem, _, suffix = key.rpartition(".")
        return f"{prefix}{names[stem]}.{suffix}" if stem in names else None

    def _prefix(self, layer: int | None) -> str:
        return "" if layer is None else self._family.layer.replace("{layer}", str(layer))

    def _order(self, key: str) -> Order | None:
        return self._orders.get(key, self._orders.get(key.rpartition(".")[0]))

    def _split(self, tensor: GgufTensor, layer: int | None, key: str) -> Iterator[tuple[str, Recipe]]:
        """Tensors that the converter may fuse although the Hugging Face checkpoint has them apart."""
        stem, _, suffix = key.rpartition(".")
        if stem == "attn_qkv":
            output = self._file.tensors[f"blk.{layer}.attn_output.weight"]
            query_rows = output.shape[-1]
            value_rows = (tensor.shape[0] - query_rows) // 2
            stops = (0, query_rows, query_rows + value_rows, query_rows + 2 * value_rows)
            for index, name in enumerate(("attn_q", "attn_k", "attn_v")):
                part = Part(tensor.name, rows=(stops[index], stops[index + 1]))
                yield str(self._target(layer, f"{name}.{suffix}")), Recipe((part,), self._order(name))
        elif stem == "ffn_gate_up_exps":
            half = tensor.shape[1] // 2
            for expert in range(tensor.shape[0]):
                for name, rows in (("ffn_gate_exps", (0, half)), ("ffn_up_exps", (half, 2 * half))):
                    target = str(self._target(layer, f"{name}.{suffix}")).replace("{expert}", str(expert))
                    yield target, Recipe((Part(tensor.name, expert, rows),))

    def _merges(self, layer: int, keys: set[str]) -> Iterator[tuple[str, Recipe]]:
        for target, (sources, combine) in self._family.merges.items():
            if keys.issuperset(sources):
                parts = tuple(Part(f"blk.{layer}.{source}") for source in sources)
                yield self._prefix(layer) + target, Recipe(parts, self._orders.get(target), combine)

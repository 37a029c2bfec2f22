"""Tiny random embedding and reranking checkpoints, in the layout of sentence-transformers.

The weights are random but not flat, so that a wrong mask, position or pooling changes the vectors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    ColQwen2ForRetrieval,
    PreTrainedTokenizerFast,
    SiglipTextModel,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mlxcel.testing.tiny_tokenizer import END_OF_TEXT, VOCAB_TOKENS, build_tiny_tokenizer

_SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_TEXT: Final = (
    "the river runs past the old mill and the miller counts the sacks that the carts bring in from the valley",
    "what is the capital of france paris is the capital of france rome is the capital of italy",
    "when the rain comes the wheel turns faster when it stays away the stones are still",
)
_HIDDEN: Final = 32
_SIZES: Final = {
    "vocab_size": VOCAB_TOKENS,
    "hidden_size": _HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
_DECODER_SIZES: Final = {**_SIZES, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256}

# Config settings by family, and the ``architectures`` entry that its checkpoints carry.
_FAMILIES: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "bert": ("BertModel", {**_SIZES, "max_position_embeddings": 128}),
    "xlm-roberta": ("XLMRobertaModel", {**_SIZES, "max_position_embeddings": 129, "pad_token_id": 0, "type_vocab_size": 1}),
    "modernbert": ("ModernBertModel", {**_SIZES, "max_position_embeddings": 256, "local_attention": 8, "pad_token_id": 0}),
    "qwen3": ("Qwen3ForCausalLM", {**_DECODER_SIZES}),
    "gemma3_text": (
        "Gemma3TextModel",
        {**_DECODER_SIZES, "use_bidirectional_attention": True, "sliding_window": 8, "num_hidden_layers": 7},
    ),
    "llama_bidirec": ("LlamaBidirectionalModel", {**_DECODER_SIZES}),
    "ministral3": ("Ministral3Model", {**_DECODER_SIZES, "is_causal": False, "sliding_window": None}),
    "lfm2": (
        "Lfm2BidirectionalModel",
        {**_DECODER_SIZES, "layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
    ),
    "siglip_text_model": ("SiglipTextModel", {**_SIZES, "max_position_embeddings": 64, "projection_size": 32}),
}
FAMILIES: Final = tuple(_FAMILIES)
_BUILT_AS: Final = {"llama_bidirec": "llama"}
_POOLING: Final = {"qwen3": "lasttoken", "lfm2": "cls", "modernbert": "cls"}


def build_word_tokenizer(*, trailing: str | None = None) -> PreTrainedTokenizerFast:
    """A small WordPiece tokenizer with BERT's templates; instead of them, only ``trailing`` is appended when it is given."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [*_SPECIAL, *([trailing] if trailing else [])]
    tokenizer.train_from_iterator(_TEXT, trainers.WordPieceTrainer(vocab_size=VOCAB_TOKENS, special_tokens=special))
    ids = {text: tokenizer.token_to_id(text) for text in special}
    if trailing:
        template = processors.TemplateProcessing(single=f"$A {trailing}", special_tokens=[(trailing, ids[trailing])])
    else:
        template = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
        )
    tokenizer.post_processor = template
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{name: text for name, text in zip(("pad_token", "unk_token", "cls_token", "sep_token"), _SPECIAL, strict=True)},
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        model_max_length=10**30,
    )


def write_tiny_embedder(
    family: str,
    folder: Path,
    *,
    pooling: Mapping[str, Any] | None = None,
    dense: Sequence[tuple[int, int]] = (),
    **settings: Any,
) -> Path:
    """Write a checkpoint of one of :data:`FAMILIES` and return its folder.

    Args:
        pooling: contents of ``1_Pooling/config.json``; None writes the family's usual mode.
        dense: (in, out) of linear layers after pooling.
        settings: further config fields.
    """
    architecture, sizes = _FAMILIES[family]
    config = _config(_BUILT_AS.get(family, family), sizes | settings)
    model = SiglipTextModel(config) if family == "siglip_text_model" else AutoModel.from_config(config)
    _save(model, folder, {"model_type": family, "architectures": [architecture]}, sizes.get("is_causal"))
    trailing = END_OF_TEXT if family in ("qwen3", "siglip_text_model") else None
    build_word_tokenizer(trailing=trailing).save_pretrained(folder)
    mode = {"embedding_dimension": _HIDDEN, "pooling_mode": _POOLING.get(family, "mean")}
    _write(folder / "1_Pooling" / "config.json", dict(pooling) if pooling is not None else mode)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    for number, (width, out) in enumerate(dense, start=2):
        place = folder / f"{number}_Dense"
        activation = "torch.nn.modules.linear.Identity" if number % 2 else "torch.nn.modules.activation.Tanh"
        config = {"in_features": width, "out_features": out, "bias": False, "activation_function": activation}
        _write(place / "config.json", config)
        save_file({"linear.weight": torch.randn(out, width) / width**0.5}, place / "model.safetensors")
        modules.append((place.name, "Dense"))
    modules.append((f"{len(modules)}_Normalize", "Normalize"))
    (folder / modules[-1][0]).mkdir(exist_ok=True)
    entries = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(modules)
    ]
    _write(folder / "modules.json", entries)
    return folder


def write_tiny_late_interaction(folder: Path) -> Path:
    """Write a ColQwen2 checkpoint and return its folder."""
    text = {**_DECODER_SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": _HIDDEN, "num_heads": 2, "patch_size": 4}
    config = CONFIG_MAPPING["colqwen2"](
        vlm_config={"model_type": "qwen2_vl", "text_config": text, "vision_config": vision}, embedding_dim=16
    )
    _save(ColQwen2ForRetrieval(config), folder, {})
    build_word_tokenizer(trailing=END_OF_TEXT).save_pretrained(folder)
    return folder


def write_tiny_reranker(family: str, folder: Path, *, labels: int = 1, **settings: Any) -> Path:
    """Write a sequence classifier of an encoder family, or for "qwen3" a causal model that can say yes and no."""
    if family == "qwen3":
        _save(AutoModelForCausalLM.from_config(_config(family, _FAMILIES[family][1] | settings)), folder, {})
        tokenizer = build_tiny_tokenizer()
        tokenizer.add_tokens(["yes", "no"])
        tokenizer.save_pretrained(folder)
        return folder
    config = _config(family, _FAMILIES[family][1] | {"num_labels": labels} | settings)
    _save(AutoModelForSequenceClassification.from_config(config), folder, {})
    build_word_tokenizer().save_pretrained(folder)
    return folder


def _config(model_type: str, settings: Mapping[str, Any]) -> Any:
    known = {key: value for key, value in settings.items() if key != "is_causal"}
    return CONFIG_MAPPING[model_type](**known)


def _save(model: Any, folder: Path, changes: Mapping[str, Any], is_causal: bool | None = None) -> None:
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(noise * 0.2 + (1.0 if parameter.dim() == 1 and parameter.mean() > 0.5 else 0.0))
    model.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | changes
    if is_causal is not None:
        config["is_causal"] = is_causal
    _write(path, config)


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")

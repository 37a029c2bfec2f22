"""Which checkpoints embed or rank, how they pool, and how long a text may be: from JSON files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlxcel.core.errors import StartupError
from mlxcel.runners.embed.detect import Embedder, Reranker, detect, reranker_of
from mlxcel.runners.embed.layout import read_layout

POOLING_MODULE = [{"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]


def checkpoint(folder: Path, config: dict[str, Any], **files: Any) -> Path:
    names = {
        "config": "config.json",
        "modules": "modules.json",
        "pooling": "1_Pooling/config.json",
        "sentence": "sentence_bert_config.json",
        "tokenizer": "tokenizer_config.json",
    }
    for name, value in {"config": config, **files}.items():
        path = folder / names[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("config", "files", "family"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, {}, "bert"),
        ({"model_type": "xlm-roberta"}, {}, "xlm-roberta"),
        ({"model_type": "modernbert"}, {}, "modernbert"),
        ({"model_type": "siglip"}, {}, "siglip"),
        ({"model_type": "gemma3_text", "architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True}, {},
         "gemma3_text"),
        ({"model_type": "llama_bidirec", "architectures": ["LlamaBidirectionalModel"]}, {}, "llama_bidirec"),
        ({"model_type": "ministral3", "architectures": ["Ministral3Model"], "is_causal": False}, {}, "ministral3"),
        ({"model_type": "lfm2", "architectures": ["Lfm2BidirectionalModel"]}, {}, "lfm2"),
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, {"modules": POOLING_MODULE}, "qwen3"),
        ({"model_type": "qwen3", "architectures": ["Qwen3Model"]}, {"pooling": {"pooling_mode": "lasttoken"}}, "qwen3"),
    ],
)  # fmt: skip
def test_embedders_are_recognised(tmp_path: Path, config: dict[str, Any], files: dict[str, Any], family: str) -> None:
    assert detect(checkpoint(tmp_path, config, **files)) == Embedder(family)


@pytest.mark.parametrize(
    ("config", "files"),
    [
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, {}),
        ({"model_type": "gemma3_text", "architectures": ["Gemma3TextModel"]}, {}),
        ({"model_type": "ministral3", "architectures": ["Ministral3Model"]}, {}),
        ({"model_type": "llama", "architectures": None}, {}),
        ({"model_type": "qwen3_vl"}, {"modules": [{"type": "sentence_transformers.models.LogitScore"}]}),
        ({}, {}),
    ],
)
def test_generating_models_are_left_alone(tmp_path: Path, config: dict[str, Any], files: dict[str, Any]) -> None:
    assert detect(checkpoint(tmp_path, config, **files)) is None
    assert detect(tmp_path / "model.gguf") is None


@pytest.mark.parametrize("family", ["bert", "xlm-roberta", "modernbert"])
def test_classifiers_rank_and_never_embed(tmp_path: Path, family: str) -> None:
    folder = checkpoint(
        tmp_path, {"model_type": family, "architectures": ["AnyForSequenceClassification"]}, modules=POOLING_MODULE
    )
    assert detect(folder) == Reranker("sequence_classifier", family) == reranker_of(folder)


def test_a_generating_judge_is_only_found_when_it_is_named(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]})
    assert detect(folder) is None
    assert reranker_of(folder) == Reranker("generative_text", "qwen3")


@pytest.mark.parametrize("family", ["llama", "bert", ""])
def test_other_rerankers_are_refused_by_name(tmp_path: Path, family: str) -> None:
    with pytest.raises(StartupError, match=f"Unsupported reranker model type '{family}'"):
        reranker_of(checkpoint(tmp_path, {"model_type": family}))


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [("idefics3", "ColIdefics3"), ("qwen2_5_vl", "ColQwen2_5"), ("llama_nemotron_vl", "LlamaNemotronVLModel")],
)
def test_embedders_that_are_not_served_are_named_and_never_generate(
    tmp_path: Path, model_type: str, architecture: str
) -> None:
    with pytest.raises(StartupError, match=f"'{model_type}' are not served"):
        detect(checkpoint(tmp_path, {"model_type": model_type, "architectures": [architecture]}))


def test_an_embedding_layout_on_a_foreign_type_names_it(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="'mpnet'"):
        detect(checkpoint(tmp_path, {"model_type": "mpnet"}, modules=POOLING_MODULE))


@pytest.mark.parametrize("content", [{}, "x", [1]])
def test_a_malformed_module_list_is_named(tmp_path: Path, content: Any) -> None:
    with pytest.raises(StartupError, match=r"modules\.json must hold a list"):
        detect(checkpoint(tmp_path, {"model_type": "qwen3"}, modules=content))


@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"word_embedding_dimension": 8}, "mean"),
    ],
)
def test_pooling_files_of_both_styles(tmp_path: Path, pooling: dict[str, Any], mode: str) -> None:
    folder = checkpoint(tmp_path, {"model_type": "bert"}, pooling=pooling)
    assert read_layout(folder, pooling=None, max_tokens=None).pooling == mode
    assert read_layout(folder, pooling="cls", max_tokens=None).pooling == "cls"


@pytest.mark.parametrize(
    ("pooling", "message"),
    [
        ({"pooling_mode": "weightedmean"}, "'weightedmean'"),
        ({"pooling_mode_weightedmean_tokens": True}, "'weightedmean'"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "'mean_sqrt_len_tokens'"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "several poolings"),
        ({"pooling_mode": "mean", "include_prompt": False}, "include_prompt"),
    ],
)
def test_poolings_that_are_not_served_are_named(tmp_path: Path, pooling: dict[str, Any], message: str) -> None:
    folder = checkpoint(tmp_path, {"model_type": "bert"}, pooling=pooling)
    with pytest.raises(StartupError, match=message):
        read_layout(folder, pooling=None, max_tokens=None)


def test_without_a_pooling_file_the_family_decides(tmp_path: Path) -> None:
    assert read_layout(checkpoint(tmp_path, {"model_type": "qwen3"}), pooling=None, max_tokens=None).pooling == "lasttoken"
    assert read_layout(checkpoint(tmp_path, {"model_type": "bert"}), pooling=None, max_tokens=None).pooling == "mean"


@pytest.mark.parametrize(
    ("config", "files", "asked", "limit"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512}, {"sentence": {"max_seq_length": 256}}, None, 256),
        ({"model_type": "bert", "max_position_embeddings": 512}, {}, None, 512),
        ({"model_type": "bert", "max_position_embeddings": 512}, {"tokenizer": {"model_max_length": 128}}, None, 128),
        ({"model_type": "bert", "max_position_embeddings": 512}, {"tokenizer": {"model_max_length": 1e30}}, None, 512),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}, {}, None, 512),
        ({"model_type": "qwen3", "max_position_embeddings": 32768}, {"tokenizer": {"model_max_length": 131072}}, None, 8192),
        ({"model_type": "gemma3_text"}, {"sentence": {"max_seq_length": 2048}}, None, 2048),
        ({"model_type": "bert", "max_position_embeddings": 512}, {}, 100, 100),
        ({"model_type": "bert", "max_position_embeddings": 512}, {}, 9999, 512),
    ],
)
def test_the_shortest_limit_counts(
    tmp_path: Path, config: dict[str, Any], files: dict[str, Any], asked: int | None, limit: int
) -> None:
    assert read_layout(checkpoint(tmp_path, config, **files), pooling=None, max_tokens=asked).max_tokens == limit


def test_modules_that_are_not_served_are_named(tmp_path: Path) -> None:
    modules = [*POOLING_MODULE, {"path": "2_CNN", "type": "sentence_transformers.models.CNN"}]
    with pytest.raises(StartupError, match="'CNN'"):
        read_layout(checkpoint(tmp_path, {"model_type": "bert"}, modules=modules), pooling=None, max_tokens=None)

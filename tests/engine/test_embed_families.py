"""Every embedding family against transformers' own modules, run one text at a time without our attention."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    ColQwen2ForRetrieval,
    LlamaConfig,
    SiglipTextModel,
)
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

from mlxcel.core.errors import StartupError
from mlxcel.core.vectors import TokenRow, Vector
from mlxcel.runners.embed.build import EmbedderChoices, OpenedEmbedder, open_embedder
from mlxcel.runners.embed.detect import Embedder, Reranker, detect, reranker_of
from mlxcel.runners.rerank.build import open_reranker
from mlxcel.testing.tiny_vectors import (
    FAMILIES,
    write_tiny_embedder,
    write_tiny_late_interaction,
    write_tiny_reranker,
)
from mlxcel.text.vector_tokens import RowTokenizer

TEXTS = (
    "the old mill",
    "x",
    "what is the capital of france",
    "the river runs past " * 12,
    "the miller counts the sacks that the carts bring in",
    "the old mall",
)
BOTH_WAYS = ("llama_bidirec", "ministral3", "lfm2")


def opened(folder: Path, choices: EmbedderChoices | None = None) -> OpenedEmbedder:
    found = detect(folder)
    assert isinstance(found, Embedder)
    return open_embedder(folder, found, choices)


def numbers(vectors: list[Vector]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.stack([np.frombuffer(vector.data, "<f4").reshape(vector.shape) for vector in vectors])


def rows_of(model: OpenedEmbedder, texts: tuple[str, ...] = TEXTS) -> list[TokenRow]:
    return [entry.row for entry in RowTokenizer(model.tokenizer, model.info.max_tokens).texts(texts)]


def centred_convolution(module: Lfm2ShortConv) -> Callable[..., torch.Tensor]:
    """The gated convolution written out: each place sees its neighbours on both sides."""

    def forward(hidden_states: torch.Tensor, **_: object) -> torch.Tensor:
        before, gate, inner = module.in_proj(hidden_states).chunk(3, dim=-1)
        gated = before * inner
        mixed = torch.zeros_like(gated)
        for place in range(gated.shape[1]):
            for tap in range(3):
                if 0 <= place + tap - 1 < gated.shape[1]:
                    mixed[:, place] += gated[:, place + tap - 1] * module.conv.weight[:, 0, tap]
        out: torch.Tensor = module.out_proj(gate * mixed)
        return out

    return forward


def reference(family: str, folder: Path, rows: list[TokenRow], pooling: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Pooled states of each text alone, from eager transformers modules."""
    settings: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float32}
    if family == "llama_bidirec":
        settings["config"] = LlamaConfig.from_pretrained(folder)
    model = (SiglipTextModel if family == "siglip_text_model" else AutoModel).from_pretrained(folder, **settings).eval()
    for module in model.modules():
        if isinstance(module, Lfm2ShortConv):
            module.forward = centred_convolution(module)
    pooled = []
    with torch.inference_mode():
        for row in rows:
            ids = torch.tensor([row.token_ids])
            if family == "siglip_text_model":
                padded = torch.nn.functional.pad(ids, (0, 64 - ids.shape[1]))
                pooled.append(model(input_ids=padded).pooler_output[0])
                continue
            both = {"attention_mask": torch.zeros(1, 1, ids.shape[1], ids.shape[1])} if family in BOTH_WAYS else {}
            states = model(input_ids=ids, **both).last_hidden_state[0]
            pooled.append({"mean": states.mean(0), "cls": states[0], "lasttoken": states[-1]}[pooling])
    return torch.stack(pooled).numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_equal_transformers_and_ignore_their_neighbours(family: str, tmp_path: Path) -> None:
    folder = write_tiny_embedder(family, tmp_path)
    model = opened(folder)
    encoder, rows = model.load(), rows_of(model)
    together = numbers(encoder.run(rows))
    wanted = reference(family, folder, rows, str(model.info.pooling))
    np.testing.assert_allclose(together, wanted, rtol=1e-3, atol=2e-4)
    alone = numbers([encoder.run([row])[0] for row in rows])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=2e-5)
    assert np.abs(together[0] - together[5]).max() > 1e-2  # one word apart, and the model sees it
    assert together.shape[1] == model.info.dimensions


def test_the_window_of_local_attention_matters(tmp_path: Path) -> None:
    """A far word moves the first place of a model with only local layers by way of several layers, or not at all."""
    folder = write_tiny_embedder("modernbert", tmp_path, num_hidden_layers=1, layer_types=["sliding_attention"])
    encoder = opened(folder).load()
    near, far = TokenRow((2, *[5] * 30)), TokenRow((2, *[5] * 29, 9))
    first, second = numbers(encoder.run([near, far]))
    np.testing.assert_allclose(first, second, atol=1e-6)
    close = TokenRow((2, 5, 9, *[5] * 28))
    assert np.abs(numbers(encoder.run([close]))[0] - first).max() > 1e-3


def test_dense_layers_and_their_activations_follow_the_pooling(tmp_path: Path) -> None:
    folder = write_tiny_embedder("gemma3_text", tmp_path, dense=((32, 48), (48, 16)))
    model = opened(folder)
    assert model.info.dimensions == 16
    rows = rows_of(model)
    pooled = torch.from_numpy(reference("gemma3_text", folder, rows, "mean"))
    from safetensors.torch import load_file

    first = load_file(folder / "2_Dense" / "model.safetensors")["linear.weight"]
    second = load_file(folder / "3_Dense" / "model.safetensors")["linear.weight"]
    wanted = torch.tanh(pooled @ first.T) @ second.T
    np.testing.assert_allclose(numbers(model.load().run(rows)), wanted.numpy(), rtol=1e-3, atol=2e-4)


def test_dense_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    folder = write_tiny_embedder("bert", tmp_path, dense=((32, 16),))
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(StartupError, match=r"2_Dense/model\.safetensors is missing"):
        opened(folder).load()


def test_the_operator_chooses_the_pooling(tmp_path: Path) -> None:
    folder = write_tiny_embedder("bert", tmp_path)
    model = opened(folder, EmbedderChoices(pooling="max", max_tokens=16))
    assert (model.info.pooling, model.info.max_tokens) == ("max", 16)
    rows = rows_of(model)
    assert max(len(row.token_ids) for row in rows) == 16
    states = opened(folder, EmbedderChoices(pooling="max")).load().run(rows)
    assert np.abs(numbers(states) - reference("bert", folder, rows, "mean")).max() > 1e-2


def test_missing_weights_are_named(tmp_path: Path) -> None:
    folder = write_tiny_embedder("bert", tmp_path)
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights.pop("encoder.layer.1.output.dense.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StartupError, match=r"lacks 1 tensors, first encoder\.layer\.1\.output\.dense\.weight"):
        opened(folder).load()


@pytest.mark.parametrize("family", ["bert", "xlm-roberta", "modernbert"])
@pytest.mark.parametrize("settings", [{}, {"classifier_pooling": "mean"}])
def test_cross_encoders_equal_transformers(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    if settings and family != "modernbert":
        pytest.skip("a setting of ModernBERT")
    folder = write_tiny_reranker(family, tmp_path, **settings)
    found = detect(folder)
    assert found == Reranker("sequence_classifier", family)
    model = open_reranker(folder, found)
    rows = [entry.row for entry in model.encoder.encode("what is the capital", TEXTS, None)]
    logits = model.load().run(rows)
    whole = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        for row, logit in zip(rows, logits, strict=True):
            typed = {} if family != "bert" else {"token_type_ids": torch.tensor([row.type_ids])}
            wanted = whole(input_ids=torch.tensor([row.token_ids]), **typed).logits[0, 0]
            assert logit == pytest.approx(float(wanted), abs=1e-4)
    assert max(logits) - min(logits) > 1e-2


def test_segments_are_numbered_where_the_tokenizer_says_so(tmp_path: Path) -> None:
    folder = write_tiny_reranker("bert", tmp_path)
    pairs = open_reranker(folder, reranker_of(folder)).encoder.encode("the mill", ["the river"], None)
    assert pairs[0].row.type_ids == (0, 0, 0, 0, 1, 1, 1)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"model_input_names": ["input_ids", "attention_mask"]}
    path.write_text(json.dumps(config), encoding="utf-8")
    assert open_reranker(folder, reranker_of(folder)).encoder.encode("the mill", ["the river"], None)[0].row.type_ids == ()


def test_a_classifier_of_several_labels_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_reranker("bert", tmp_path, labels=2)
    with pytest.raises(StartupError, match="exactly one output label"):
        open_reranker(folder, reranker_of(folder)).load()


def test_the_judge_weighs_yes_against_no(tmp_path: Path) -> None:
    folder = write_tiny_reranker("qwen3", tmp_path, vocab_size=520, max_position_embeddings=2048)
    found = reranker_of(folder)
    assert found == Reranker("generative_text", "qwen3")
    model = open_reranker(folder, found)
    rows = [entry.row for entry in model.encoder.encode("capital?", TEXTS, None)]
    differences = model.load().run(rows)
    whole = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = RowTokenizer(open_reranker(folder, found).encoder._backend, 4096)  # type: ignore[union-attr]
    yes, no = (tokenizer.texts([word])[0].row.token_ids[0] for word in ("yes", "no"))
    with torch.inference_mode():
        for row, difference in zip(rows, differences, strict=True):
            logits = whole(input_ids=torch.tensor([row.token_ids])).logits[0, -1]
            assert difference == pytest.approx(float(logits[yes] - logits[no]), abs=1e-4)


def test_the_judge_reads_the_instruction_and_cuts_only_the_document(tmp_path: Path) -> None:
    folder = write_tiny_reranker("qwen3", tmp_path, vocab_size=520)
    found = reranker_of(folder)
    whole = open_reranker(folder, found).encoder
    short = whole.encode("q", ["mill"], None)[0]
    other = whole.encode("q", ["mill"], "find rivers")[0]
    assert short.row != other.row
    limit = len(short.row.token_ids) + 10
    cut = open_reranker(folder, found, EmbedderChoices(max_tokens=limit)).encoder.encode("q", ["mill " * 200], None)[0]
    assert (cut.truncated, short.truncated) == (True, False)
    assert len(cut.row.token_ids) == limit
    assert cut.row.token_ids[-8:] == short.row.token_ids[-8:]
    with pytest.raises(StartupError, match="no room"):
        open_reranker(folder, found, EmbedderChoices(max_tokens=8))


def test_late_interaction_gives_a_vector_a_token(tmp_path: Path) -> None:
    folder = write_tiny_late_interaction(tmp_path)
    model = opened(folder)
    assert (model.info.pooling, model.info.dimensions) == (None, 16)
    rows = rows_of(model)
    together = model.load().run(rows)
    whole = ColQwen2ForRetrieval.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        for row, vector in zip(rows, together, strict=True):
            assert vector.shape == (len(row.token_ids), 16)
            ids = torch.tensor([row.token_ids])
            wanted = whole(input_ids=ids, attention_mask=torch.ones_like(ids)).embeddings[0].numpy()
            got = np.frombuffer(vector.data, "<f4").reshape(vector.shape)
            np.testing.assert_allclose(got / np.linalg.norm(got, axis=1, keepdims=True), wanted, atol=1e-4)

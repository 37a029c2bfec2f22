"""Puts a reranker together: what is read before the server starts, and what its owner thread loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from mlxcel.core.errors import StartupError
from mlxcel.core.vectors import RerankerInfo
from mlxcel.runners.embed.build import EmbedderChoices
from mlxcel.runners.embed.detect import Reranker
from mlxcel.runners.embed.layout import first_position, length_limit
from mlxcel.runners.embed.loading import load_tokenizer_backend, load_transformer, reads_segments
from mlxcel.runners.embed.packed import PackedTrunk
from mlxcel.runners.hub.folder import read_json
from mlxcel.runners.rerank.classifier import Classifier, encoder_and_head
from mlxcel.runners.rerank.judge import Judge, JudgePrompts, answer_ids
from mlxcel.text.vector_tokens import EncodedRow, RowTokenizer


class ClassifierPairs:
    """Pairs in the tokenizer's own form."""

    def __init__(self, tokenizer: RowTokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, query: str, documents: Sequence[str], instruction: str | None) -> list[EncodedRow]:
        """One row a document; a classifier reads no instruction."""
        return self._tokenizer.pairs(query, documents)


@dataclass(frozen=True, slots=True)
class OpenedReranker:
    """A reranking checkpoint without its weights; ``load`` reads them, on the thread that will run the model."""

    info: RerankerInfo
    encoder: ClassifierPairs | JudgePrompts
    load: Callable[[], Classifier | Judge]


def open_reranker(folder: Path, found: Reranker, choices: EmbedderChoices | None = None) -> OpenedReranker:
    """Read everything but the weights.

    Raises:
        StartupError: the checkpoint is damaged or asks for something that is not served.
    """
    choices = choices or EmbedderChoices()
    limit = length_limit(folder, read_json(folder / "config.json"))
    info = RerankerInfo(found.kind, found.family, min(limit, choices.max_tokens) if choices.max_tokens else limit)
    backend = load_tokenizer_backend(folder)
    if found.kind == "sequence_classifier":
        pairs = ClassifierPairs(RowTokenizer(backend, info.max_tokens, segments=reads_segments(folder)))
        return OpenedReranker(info, pairs, lambda: _load_classifier(folder, found.family, choices))
    yes_no = answer_ids(backend)
    return OpenedReranker(info, JudgePrompts(backend, info.max_tokens), lambda: _load_judge(folder, yes_no, choices))


def _load_classifier(folder: Path, family: str, choices: EmbedderChoices) -> Classifier:
    choices.settle_thread()
    device = choices.device or torch.device("cpu")
    model = load_transformer(folder, AutoModelForSequenceClassification, device=device, dtype=torch.float32)
    encoder, head = encoder_and_head(model, family)
    positions = first_position(family, read_json(folder / "config.json"))
    return Classifier(_packed(encoder, positions), head, device)


def _load_judge(folder: Path, yes_no: tuple[int, int], choices: EmbedderChoices) -> Judge:
    choices.settle_thread()
    device = choices.device or torch.device("cpu")
    model = load_transformer(folder, AutoModelForCausalLM, device=device, dtype=torch.float32)
    projection: torch.Tensor = model.get_output_embeddings().weight.detach()
    yes, no = (projection[token_id].clone() for token_id in yes_no)
    return Judge(_packed(model.base_model, 0), yes, no, device)


def _packed(model: torch.nn.Module, first: int) -> PackedTrunk:
    try:
        return PackedTrunk(model, first_position=first)
    except ValueError as error:
        raise StartupError(f"the reranker cannot be served: {error}") from None

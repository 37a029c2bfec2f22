"""Cross-encoders: a pair in, the logit of the model's one label out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from mlxcel.core.errors import StartupError
from mlxcel.core.vectors import TokenRow
from mlxcel.runners.embed.packed import Trunk, group_rows

Head = Callable[[torch.Tensor], torch.Tensor]


class Classifier:
    """Implements :class:`~mlxcel.core.ports.RowRunner` for logits.

    Args:
        trunk: the encoder of the classifier.
        head: hidden states [rows, length, hidden] of unpadded rows to logits [rows, 1].
    """

    def __init__(self, trunk: Trunk, head: Head, device: torch.device) -> None:
        self._trunk = trunk
        self._head = head
        self._device = device

    def run(self, rows: Sequence[TokenRow]) -> list[float]:
        """One logit a row."""
        groups = group_rows(rows, self._device)
        logits = [0.0] * len(rows)
        with torch.inference_mode():
            for group, states in zip(groups, self._trunk.states(groups), strict=True):
                for row, logit in zip(group.rows, self._head(states)[:, 0].tolist(), strict=True):
                    logits[row] = logit
        return logits

    def close(self) -> None:
        """Nothing outlives the object."""


def encoder_and_head(model: PreTrainedModel, family: str) -> tuple[PreTrainedModel, Head]:
    """The two halves of a transformers ``*ForSequenceClassification`` model, put together as its own ``forward`` does.

    Raises:
        StartupError: it does not have exactly one label.
    """
    whole: Any = model
    if whole.config.num_labels != 1:
        raise StartupError("reranker sequence classifiers must expose exactly one output label")
    if family == "bert":
        return whole.bert, lambda states: whole.classifier(whole.bert.pooler(states))
    if family == "xlm-roberta":
        return whole.roberta, lambda states: whole.classifier(states)
    mean = whole.config.classifier_pooling == "mean"
    return whole.model, lambda states: whole.classifier(whole.head(states.mean(1) if mean else states[:, 0]))

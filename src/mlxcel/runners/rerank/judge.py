"""Generating rerankers: the model is asked whether a document answers a query, and its yes is weighed against its no.

The prompt is the recipe of Qwen3-Reranker's model card. The score is the difference of the two logits after the prompt's
last token, so that its sigmoid is the probability of yes among the two.
"""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
import torch

from mlxcel.core.errors import StartupError
from mlxcel.core.vectors import TokenRow
from mlxcel.runners.embed.packed import Trunk, group_rows
from mlxcel.text.vector_tokens import EncodedRow

DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class JudgePrompts:
    """Writes the judge's prompt. Only the middle, with the query and the document, is ever cut.

    Args:
        backend: the model's tokenizer; it belongs to this object.
        max_tokens: longest prompt.

    Raises:
        StartupError: the limit leaves no room for a document.
    """

    def __init__(self, backend: tokenizers.Tokenizer, max_tokens: int) -> None:
        self._prefix = tuple(backend.encode(_PREFIX, add_special_tokens=False).ids)
        self._suffix = tuple(backend.encode(_SUFFIX, add_special_tokens=False).ids)
        self._room = max_tokens - len(self._prefix) - len(self._suffix)
        if self._room < 1:
            raise StartupError("--embedding-max-length leaves no room for a document in the judge's prompt")
        self._backend = backend

    def encode(self, query: str, documents: Sequence[str], instruction: str | None) -> list[EncodedRow]:
        """One prompt a document."""
        head = f"<Instruct>: {instruction or DEFAULT_INSTRUCTION}\n<Query>: {query}\n<Document>: "
        middles = self._backend.encode_batch([head + document for document in documents], add_special_tokens=False)
        return [
            EncodedRow(TokenRow((*self._prefix, *middle.ids[: self._room], *self._suffix)), len(middle.ids) > self._room)
            for middle in middles
        ]


class Judge:
    """Implements :class:`~mlxcel.core.ports.RowRunner` for logit differences.

    Args:
        trunk: a causal decoder.
        yes, no: rows of the output projection, [hidden].
    """

    def __init__(self, trunk: Trunk, yes: torch.Tensor, no: torch.Tensor, device: torch.device) -> None:
        self._trunk = trunk
        self._direction = (yes - no).float().to(device)
        self._device = device

    def run(self, rows: Sequence[TokenRow]) -> list[float]:
        """logit(yes) - logit(no) of each prompt."""
        groups = group_rows(rows, self._device)
        differences = [0.0] * len(rows)
        with torch.inference_mode():
            for group, states in zip(groups, self._trunk.states(groups), strict=True):
                for row, difference in zip(group.rows, (states[:, -1] @ self._direction).tolist(), strict=True):
                    differences[row] = difference
        return differences

    def close(self) -> None:
        """Nothing outlives the object."""


def answer_ids(backend: tokenizers.Tokenizer) -> tuple[int, int]:
    """The tokens of "yes" and "no".

    Raises:
        StartupError: one of them is not a single token.
    """
    found = [backend.encode(word, add_special_tokens=False).ids for word in ("yes", "no")]
    if any(len(ids) != 1 for ids in found):
        raise StartupError('the reranker\'s tokenizer must have "yes" and "no" as single tokens')
    return found[0][0], found[1][0]

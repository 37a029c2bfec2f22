"""Texts as the token rows of embedding and reranking models, with special tokens and a length limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tokenizers

from mlxcel.core.vectors import TokenRow


@dataclass(frozen=True, slots=True)
class EncodedRow:
    """A row, and whether the text was longer than the limit."""

    row: TokenRow
    truncated: bool


class RowTokenizer:
    """Encodes with the model's own template of special tokens. May be used from several threads.

    A text over the limit is cut from the right before the special tokens are added, so that the closing one stays; of a
    pair, the longer text is cut first.

    Args:
        backend: without padding; it belongs to this object.
        max_tokens: longest row, special tokens included.
        segments: number the two texts of a pair.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, max_tokens: int, *, lower_case: bool = False, segments: bool = True
    ) -> None:
        backend.enable_truncation(max_tokens, strategy="longest_first")
        self._backend = backend
        self._lower_case = lower_case
        self._segments = segments
        self.max_tokens = max_tokens

    def texts(self, texts: Sequence[str]) -> list[EncodedRow]:
        """One row a text."""
        wanted = [text.lower() for text in texts] if self._lower_case else list(texts)
        return [self._row(encoding) for encoding in self._backend.encode_batch(wanted)]

    def pairs(self, first: str, seconds: Sequence[str]) -> list[EncodedRow]:
        """One row a pair of ``first`` with a text of ``seconds``, in the model's own form of pairs."""
        return [self._row(pair) for pair in self._backend.encode_batch([(first, second) for second in seconds])]

    def ids(self, token_ids: Sequence[int]) -> EncodedRow:
        """Ids as they are, cut from the right."""
        return EncodedRow(TokenRow(tuple(token_ids[: self.max_tokens])), len(token_ids) > self.max_tokens)

    def _row(self, encoding: tokenizers.Encoding) -> EncodedRow:
        type_ids = tuple(encoding.type_ids) if self._segments else ()
        return EncodedRow(TokenRow(tuple(encoding.ids), type_ids if any(type_ids) else ()), bool(encoding.overflowing))

"""Text to token ids and back, without generating anything."""

from __future__ import annotations

from collections.abc import Sequence

from mlxcel.core.errors import VocabularyRangeError
from mlxcel.core.tokens import TokenPiece
from mlxcel.text.tokenizer import Tokenizer


class TokenService:
    """The loaded model's tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, content: Sequence[str | int], *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of texts and ids in their order; only the very beginning and end get special tokens."""
        ids: list[int] = []
        for index, item in enumerate(content):
            if isinstance(item, int):
                ids.append(item)
            else:
                first = add_special and index == 0
                ids += self._tokenizer.encode(item, add_special=first, parse_special=parse_special)
        return ids

    def pieces(self, ids: Sequence[int]) -> list[TokenPiece]:
        """Each token with its bytes."""
        return [TokenPiece(token_id, self._tokenizer.token_bytes(token_id)) for token_id in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included; invalid bytes become U+FFFD.

        Raises:
            VocabularyRangeError: an id outside the vocabulary, the first in request order.
        """
        size = self._tokenizer.vocab_size
        for token_id in ids:
            if not 0 <= token_id < size:
                raise VocabularyRangeError(token_id, size)
        return self._tokenizer.decode(ids)

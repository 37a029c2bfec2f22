"""Token ids to text, a few tokens at a time. Works on bytes, so a character may be spread over any number of tokens."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxcel.text.tokenizer import Tokenizer


class Detokenizer:
    """Incremental decoding of one token sequence; the pushed pieces join to ``tokenizer.decode`` of the whole.

    Incomplete UTF-8 is held until its last byte arrives; bytes that can never become a character turn into U+FFFD and the
    text goes on. Each token costs O(its bytes), whatever came before.

    Args:
        skip_special: leave control tokens out of the text.
        keep: control tokens that are shown all the same (delimiters that a parser reads).
        continues_text: the tokens continue a text, so a space that the vocabulary puts in front of words is kept. False
            decodes a text from its beginning and drops that one space.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        keep: frozenset[int] = frozenset(),
        continues_text: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids - keep if skip_special else frozenset()
        self._drop_space = tokenizer.strips_first_space and not continues_text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """The text that these tokens complete."""
        return "".join(self.push_each(ids))

    def push_each(self, ids: Iterable[int]) -> list[str]:
        """The text that each token completes, one string a token.

        A token that ends inside a character gets ``""``; the token that completes the character gets all of it.
        """
        return [self._push_one(token_id) for token_id in ids]

    def flush(self) -> str:
        """The end of the text: what is held back can no longer be completed."""
        return self._decoder.decode(b"", final=True)

    def _push_one(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        raw = self._tokenizer.token_bytes(token_id)
        if self._drop_space and raw:
            self._drop_space = False
            raw = raw.removeprefix(b" ")
        return self._decoder.decode(raw)

"""Do two tokenizers number the same tokens alike?"""

from __future__ import annotations

from mlxcel.text.tokenizer import Tokenizer


def first_difference(one: Tokenizer, other: Tokenizer) -> str | None:
    """What tells two vocabularies apart, in words; None when every id that both know means the same.

    One may have more ids than the other at the end: models of a family pad their vocabularies differently.
    """
    shared = min(one.vocab_size, other.vocab_size)
    for token_id in range(shared):
        if one.piece(token_id) != other.piece(token_id):
            return f"token {token_id} is {one.piece(token_id)!r} in one and {other.piece(token_id)!r} in the other"
    longer = max(one, other, key=lambda tokenizer: tokenizer.vocab_size)
    if any(not longer.is_special(token_id) and longer.piece(token_id) for token_id in range(shared, longer.vocab_size)):
        return f"{one.vocab_size} tokens in one and {other.vocab_size} in the other"
    return None

"""Does a decoder compute the same logits for several tokens at once as for one after another? Measured, not assumed.

Matrix products may sum in another order for another number of rows. Where they do, a draft that is verified as a block can
decide a near-tie otherwise than plain decoding would.
"""

from __future__ import annotations

import torch

from mlxcel.runners.generate.batch import Decoder, RaggedBatch

_PREFIX_TOKENS = 20
_BLOCK_TOKENS = 4


def block_equals_chain(decoder: Decoder, context_tokens: int) -> bool:
    """Compare the logits of a block with those of its tokens fed one by one, bit for bit. Overwrites the first KV blocks.

    Args:
        context_tokens: longest row the decoder takes; a window too short for the comparison counts as unequal.
    """
    count = _PREFIX_TOKENS + _BLOCK_TOKENS
    if min(context_tokens, decoder.block_count * decoder.block_tokens) < count:
        return False
    token_ids = [(7919 * (place + 1)) % decoder.vocab_size for place in range(count)]
    _feed(decoder, token_ids[:_PREFIX_TOKENS], 0)
    chain = [_feed(decoder, token_ids[place : place + 1], place)[0] for place in range(_PREFIX_TOKENS, count)]
    block = _feed(decoder, token_ids[_PREFIX_TOKENS:], _PREFIX_TOKENS)
    return torch.equal(torch.stack(chain), block)


def _feed(decoder: Decoder, token_ids: list[int], position: int) -> torch.Tensor:
    """Feed tokens of one row; logits of all of them, [tokens, vocab]."""
    stop = position + len(token_ids)
    batch = RaggedBatch(
        token_ids=_int32(token_ids),
        positions=_int32(list(range(position, stop))),
        row_starts=_int32([0, len(token_ids)]),
        context_lens=_int32([stop]),
        block_tables=torch.arange(-(-stop // decoder.block_tokens), dtype=torch.int32)[None],
        logit_indices=_int32(list(range(len(token_ids)))),
    )
    return decoder.forward(batch).clone()


def _int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)

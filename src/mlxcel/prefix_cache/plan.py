"""Pure decisions of reuse."""

from __future__ import annotations


def reusable_blocks(context_tokens: int, block_tokens: int) -> int:
    """Full blocks of a context that may be taken from the cache: at least its last token has to run again."""
    return max(0, context_tokens - 1) // block_tokens


def adopted_blocks(matched_blocks: int, context_tokens: int, block_tokens: int, min_prefix_tokens: int) -> int:
    """Blocks to adopt when ``matched_blocks`` leading ones are stored; 0 when it is not worth it.

    Args:
        context_tokens: tokens of the prompt that asks.
        min_prefix_tokens: shorter prefixes are computed again.
    """
    blocks = min(matched_blocks, reusable_blocks(context_tokens, block_tokens))
    return blocks if blocks * block_tokens >= min_prefix_tokens else 0

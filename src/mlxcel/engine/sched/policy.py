"""Pure decisions: how the prompt tokens of one step are shared out."""

from __future__ import annotations

from collections.abc import Sequence

SHARED_CHUNK_TOKENS = 512  # beside decoding rows, larger chunks count as this


def grant_tokens(chunk_tokens: int, grant_interval: int) -> int:
    """Prompt tokens that the oldest waiting prompt gets in every step beside decoding rows, at the least.

    A chunk is spread over N steps, and at most one step in N + 1 goes without (``StepCosts.wants_plain_step``): a prompt of
    C such chunks has its first token within C * (N + 1) steps.
    """
    if grant_interval <= 0:
        return 1
    chunk = min(chunk_tokens, SHARED_CHUNK_TOKENS) if chunk_tokens else SHARED_CHUNK_TOKENS
    return -(-chunk // grant_interval)


def split_prefill(remaining_tokens: Sequence[int], *, total_tokens: int, head_tokens: int, max_prompts: int) -> list[int]:
    """Share ``total_tokens`` among the prompts of a step.

    The first prompt (the oldest) gets half, and never less than ``head_tokens``; the rest goes to the shortest ones first,
    so that a short prompt does not wait behind a long one; what they leave goes back to the first.

    Args:
        remaining_tokens: tokens each prompt still needs, in queue order.
        total_tokens: tokens of this step.
        head_tokens: what the first prompt is owed.
        max_prompts: prompts that may advance in this step.

    Returns:
        Tokens for each prompt, in the same order; their sum is at most ``max(total_tokens, head_tokens)``.
    """
    shares = [0] * len(remaining_tokens)
    if not remaining_tokens:
        return shares
    shares[0] = min(remaining_tokens[0], max(head_tokens, total_tokens // 2))
    left_tokens = total_tokens - shares[0]
    others = sorted(range(1, len(remaining_tokens)), key=lambda place: remaining_tokens[place])
    for place in others[: max_prompts - 1]:
        if left_tokens <= 0:
            break
        shares[place] = min(remaining_tokens[place], left_tokens)
        left_tokens -= shares[place]
    if left_tokens > 0:
        shares[0] = min(remaining_tokens[0], shares[0] + left_tokens)
    return shares

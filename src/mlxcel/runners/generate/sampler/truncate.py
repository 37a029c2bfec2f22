"""The truncating processors, on float32 logits [rows, tokens] with settings [rows, 1]. A token that is cut becomes -inf.

All work in place. ``ranked`` logits are sorted, best first. ``min_keep`` None stands for 1 everywhere.
"""

from __future__ import annotations

import torch

from mlxcel.runners.generate.sampler import rowwise

_CUT = -torch.inf
# Windows of best tokens, tried before the whole vocabulary is sorted.
NARROW_TOKENS = 64
WIDE_TOKENS = 1024


def next_window(tokens: int, vocab_size: int) -> int:
    """The window after one of ``tokens`` turned out too small."""
    return min(WIDE_TOKENS if tokens < WIDE_TOKENS else vocab_size, vocab_size)


def top_n_sigma(logits: torch.Tensor, n: torch.Tensor, min_keep: torch.Tensor | None) -> None:
    """Keep what lies within ``n`` standard deviations of the best logit (Tang et al. 2024, arXiv:2411.07641)."""
    values = logits
    count: torch.Tensor | int = logits.shape[1]
    dead = None
    if bool((logits.amin(-1) == _CUT).any()):
        dead = logits == _CUT
        values = logits.masked_fill(dead, 0.0)
        count = count - dead.sum(-1, keepdim=True)
    centred = values - rowwise.total(values) / count
    if dead is not None:
        centred.masked_fill_(dead, 0.0)
    deviation = (rowwise.sum_of_squares(centred) / count).sqrt_()
    _cut_below(logits, logits.amax(-1, keepdim=True) - n * deviation, min_keep)


def p_less(logits: torch.Tensor, temperature: torch.Tensor, min_keep: torch.Tensor | None) -> None:
    """Keep what is at least as probable as two draws are to agree: p >= sum(p^2), at temperature T (arXiv:2509.23234)."""
    probabilities = torch.softmax(logits / temperature, -1)
    agreement = rowwise.sum_of_squares(probabilities)
    ratio = agreement / probabilities.amax(-1, keepdim=True)
    _cut_below(logits, logits.amax(-1, keepdim=True) + temperature * ratio.log_(), min_keep)


def typical(logits: torch.Tensor, mass: torch.Tensor, min_keep: torch.Tensor) -> None:
    """Keep the tokens whose surprise is nearest to the entropy, until they hold ``mass`` (Meister et al. 2022,
    arXiv:2202.00666). The token that crosses the mass is kept, and so are those equally near."""
    probabilities = torch.softmax(logits, -1)
    # -log p - H is the mean logit minus the logit: the normaliser cancels.
    mean = rowwise.total(logits.clamp(min=torch.finfo(logits.dtype).min).mul_(probabilities))
    nearness = (logits - mean).abs_().neg_()
    vocab_size = logits.shape[1]
    limit = torch.empty_like(mean)
    pending = torch.arange(len(logits), device=logits.device)
    window = min(NARROW_TOKENS, vocab_size)
    while len(pending):
        near, ids = rowwise.best_tokens(nearness[pending], window)
        share = probabilities[pending].gather(1, ids)
        before = share.cumsum(-1) - share
        keep = (before <= mass[pending]) | (torch.arange(window, device=logits.device) < min_keep[pending])
        keep &= near > _CUT
        limit[pending] = near.masked_fill(~keep, torch.inf).amin(-1, keepdim=True)
        if window == vocab_size:
            break
        pending = pending[keep[:, -1]]
        window = next_window(window, vocab_size)
    logits.masked_fill_(nearness < limit, _CUT)


def top_k_and_p(
    ranked: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor | None,
    min_keep: torch.Tensor,
    log_total: torch.Tensor | None,
) -> None:
    """Keep the ``top_k`` best, then the fewest of these whose renormalised probabilities reach ``top_p`` (Holtzman et al.
    2019, arXiv:1904.09751).

    Args:
        ranked: the best tokens of each row.
        top_p: None when no row uses it.
        log_total: log of the sum of exponentials of the whole row, [rows, 1], for rows whose ``top_k`` is the whole row;
            any other ``top_k`` must fit ``ranked``. None when every one does.
    """
    width = ranked.shape[1]
    rank = torch.arange(width, device=ranked.device)
    ranked.masked_fill_(rank >= top_k, _CUT)
    if top_p is None:
        return
    total = torch.logsumexp(ranked, -1, keepdim=True)
    if log_total is not None:
        total = torch.where(top_k <= width, total, log_total)
    share = (ranked - total).exp_()
    before = share.cumsum(-1) - share
    ranked.masked_fill_((before >= top_p) & (rank >= min_keep), _CUT)


def min_p(logits: torch.Tensor, log_min_p: torch.Tensor, min_keep: torch.Tensor | None) -> None:
    """Keep what is at least ``min_p`` times as probable as the best token (Nguyen et al. 2024, arXiv:2407.01082).

    ``min_keep`` needs ranked logits.
    """
    cut = logits < logits.amax(-1, keepdim=True) + log_min_p
    if min_keep is not None:
        cut &= torch.arange(logits.shape[1], device=logits.device) >= min_keep
    logits.masked_fill_(cut, _CUT)


def xtc(
    logits: torch.Tensor,
    threshold: torch.Tensor,
    struck: torch.Tensor,
    protected: torch.Tensor,
    min_keep: torch.Tensor,
) -> None:
    """Exclude top choices: of the tokens at or over ``threshold`` keep only the least probable (p-e-w 2024,
    https://github.com/oobabooga/text-generation-webui/pull/6335).

    Args:
        struck: bool [rows, 1], whether the row's chance fell.
        protected: bool [rows, tokens], never removed.
        min_keep: nothing is removed when fewer tokens would be left.
    """
    over = torch.softmax(logits, -1) >= threshold
    least = logits.masked_fill(~over, torch.inf).amin(-1, keepdim=True)
    cut = over & (logits > least) & ~protected & struck
    left = (logits > _CUT).sum(-1, keepdim=True) - cut.sum(-1, keepdim=True)
    logits.masked_fill_(cut & (left >= min_keep), _CUT)


def _cut_below(logits: torch.Tensor, limit: torch.Tensor, min_keep: torch.Tensor | None) -> None:
    """Cut what is under ``limit``, but not the best ``min_keep`` tokens."""
    if min_keep is None:
        stays = logits.amax(-1, keepdim=True)
    else:
        keep = min_keep.clamp(max=logits.shape[1])
        stays = torch.topk(logits, int(keep.max())).values.gather(1, keep - 1)
    logits.masked_fill_(logits < torch.minimum(limit, stays), _CUT)

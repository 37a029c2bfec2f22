"""SentencePiece BPE vocabularies as merge rules.

SentencePiece merges the adjacent pair whose *joined piece* scores best; the Rust BPE model wants an ordered list of pairs.
Every way to split a piece into two pieces of the vocabulary becomes a rule, best score first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def merges_by_score(pieces: Sequence[str], ids: Mapping[str, int], score_of: Mapping[str, float]) -> list[tuple[str, str]]:
    """Ordered merge rules for ``pieces``; ``ids`` is the whole vocabulary, ``score_of`` the log-probabilities of pieces.

    Equal scores are ordered longer left part first, as the reference converters do.
    """
    rules: list[tuple[float, int, int, int, int, str, str]] = []
    for piece in pieces:
        score = score_of[piece]
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                rules.append((-score, -len(left), -len(right), ids[left], ids[right], left, right))
    rules.sort()
    return [(rule[5], rule[6]) for rule in rules]

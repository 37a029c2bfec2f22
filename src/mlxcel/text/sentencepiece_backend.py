"""SentencePiece vocabularies as tokenizers of the Rust library, whether the pieces came from GGUF or ``tokenizer.model``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

# Kinds of pieces; GGUF's tokenizer.ggml.token_type took the numbers over.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


@dataclass(frozen=True, slots=True)
class SentencePieceVocabulary:
    """Pieces and normalisation of a SentencePiece model.

    Attributes:
        pieces, scores, kinds: one entry a token id.
        unk_id: stands for what the vocabulary cannot spell.
        charsmap: precompiled normalisation, empty for none.
        adds_space: a space is put in front of a text. "first": only at its very beginning; "each": also after every control
            token, as older model families were trained.
        removes_extra_space: white space is trimmed and runs of it are collapsed.
    """

    pieces: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[int]
    unk_id: int | None
    charsmap: bytes = b""
    adds_space: Literal["no", "first", "each"] = "each"
    removes_extra_space: bool = False

    def ids(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for index, piece in enumerate(self.pieces):
            found.setdefault(piece or f"[EMPTY_{index}]", index)
        return found


def bpe_backend(vocabulary: SentencePieceVocabulary) -> tokenizers.Tokenizer:
    """SentencePiece BPE with byte fallback."""
    ids = vocabulary.ids()
    mergeable = [piece for piece, kind in zip(vocabulary.pieces, vocabulary.kinds, strict=False) if kind == NORMAL]
    model = models.BPE(
        vocab=ids,
        merges=merges_by_score(mergeable, ids, {piece: vocabulary.scores[ids[piece]] for piece in mergeable}),
        unk_token=None if vocabulary.unk_id is None else vocabulary.pieces[vocabulary.unk_id],
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = tokenizers.Tokenizer(model)
    steps = _normalisation(vocabulary)
    if vocabulary.adds_space == "first":
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        steps += [normalizers.Prepend("▁")] if vocabulary.adds_space == "each" else []
        steps.append(normalizers.Replace(" ", "▁"))
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    return backend


def unigram_backend(vocabulary: SentencePieceVocabulary) -> tokenizers.Tokenizer:
    """SentencePiece Unigram (Kudo 2018)."""
    scored = list(zip(vocabulary.pieces, vocabulary.scores, strict=False))
    byte_fallback = BYTE in vocabulary.kinds
    backend = tokenizers.Tokenizer(models.Unigram(scored, unk_id=vocabulary.unk_id, byte_fallback=byte_fallback))
    steps = _normalisation(vocabulary)
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    scheme = {"no": "never", "first": "first", "each": "always"}[vocabulary.adds_space]
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return backend


def _normalisation(vocabulary: SentencePieceVocabulary) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(vocabulary.charsmap)] if vocabulary.charsmap else []
    if vocabulary.removes_extra_space:
        steps += [normalizers.Strip(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    return steps


def merges_by_score(pieces: Sequence[str], ids: Mapping[str, int], score_of: Mapping[str, float]) -> list[tuple[str, str]]:
    """Ordered merge rules for ``pieces``; ``ids`` is the whole vocabulary, ``score_of`` their log-probabilities.

    SentencePiece merges the adjacent pair whose *joined piece* scores best; the Rust BPE model wants an ordered list of
    pairs. Every way to split a piece into two pieces of the vocabulary becomes a rule, best score first; equal scores are
    ordered longer left part first, as the reference converters do.
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

"""Tokenizers rebuilt from GGUF metadata: byte-level BPE, SentencePiece BPE, WordPiece and Unigram vocabularies."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from mlxcel.core.errors import StartupError
from mlxcel.text.gguf_metadata import read_gguf_metadata
from mlxcel.text.gguf_pretokenizers import pre_tokenizer_rules
from mlxcel.text.sentencepiece_backend import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    SentencePieceVocabulary,
    bpe_backend,
    unigram_backend,
)
from mlxcel.text.tokenizer_parts import FimRole, PieceEncoding, TokenizerParts, looks_like_marker

_PREFIX = "tokenizer.ggml."
# GGUF files name one end token; chat models end their turns with others, known by spelling.
_TURN_ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>",
    "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip
_FIM_KEYS: Mapping[FimRole, tuple[str, ...]] = {
    "prefix": ("fim_pre_token_id", "prefix_token_id"),
    "suffix": ("fim_suf_token_id", "suffix_token_id"),
    "middle": ("fim_mid_token_id", "middle_token_id"),
    "pad": ("fim_pad_token_id",),
    "repo": ("fim_rep_token_id",),
    "sep": ("fim_sep_token_id",),
}


def load_gguf_tokenizer(path: Path) -> TokenizerParts:
    """Rebuild the tokenizer that a GGUF file describes.

    Raises:
        StartupError: the file is damaged, has no vocabulary, or names a vocabulary kind that is not known.
    """
    return gguf_tokenizer_parts(read_gguf_metadata(path))


def gguf_tokenizer_parts(metadata: Mapping[str, Any]) -> TokenizerParts:
    """The same from metadata that is already read."""
    vocabulary = _Vocabulary(metadata)
    builders = {
        "gpt2": _byte_level_bpe, "gemma4": _byte_level_bpe, "llama": _sentencepiece_bpe, "bert": _wordpiece, "t5": _unigram,
    }  # fmt: skip
    builder = builders.get(vocabulary.kind)
    if builder is None:
        raise StartupError(f"GGUF tokenizer kind '{vocabulary.kind[:40]}' is not supported")
    try:
        return builder(vocabulary)
    except StartupError:
        raise
    except Exception as error:  # the Rust constructors raise bare Exception for inconsistent vocabularies
        raise StartupError("the GGUF file's vocabulary is inconsistent") from error


class _Vocabulary:
    """The ``tokenizer.*`` keys, checked for type and length."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.kind = self.text("model") or ""
        tokens = metadata.get(_PREFIX + "tokens")
        if not isinstance(tokens, list) or not tokens:
            raise StartupError("the GGUF file has no vocabulary (tokenizer.ggml.tokens)")
        self.tokens: list[str] = [token if isinstance(token, str) else "" for token in tokens]
        self.ids: dict[str, int] = {}
        for index, token in enumerate(self.tokens):
            self.ids.setdefault(token or f"[EMPTY_{index}]", index)
        types = self._numbers("token_type")
        self.types: Sequence[int] = types.tolist() if types is not None else [NORMAL] * len(self.tokens)
        self.warnings: list[str] = []

    def text(self, name: str) -> str | None:
        value = self._metadata.get(_PREFIX + name)
        return value if isinstance(value, str) else None

    def flag(self, name: str, default: bool) -> bool:
        value = self._metadata.get(_PREFIX + name)
        return value if isinstance(value, bool) else default

    def token_id(self, name: str, default: int | None = None) -> int | None:
        value = self._metadata.get(_PREFIX + name, default)
        return value if isinstance(value, int) and 0 <= value < len(self.tokens) else None

    def _numbers(self, name: str) -> np.ndarray[Any, Any] | None:
        value = self._metadata.get(_PREFIX + name)
        if not isinstance(value, np.ndarray):
            return None
        if len(value) < len(self.tokens):
            raise StartupError(f"the GGUF file's {name} list is shorter than its vocabulary")
        return value

    def scores(self) -> list[float]:
        value = self._numbers("scores")
        if value is None:
            raise StartupError("the GGUF file has no token scores (tokenizer.ggml.scores)")
        return [float(score) for score in value.tolist()]

    def merges(self) -> list[tuple[str, str]]:
        value = self._metadata.get(_PREFIX + "merges")
        if not isinstance(value, list):
            raise StartupError("the GGUF file has no merge rules (tokenizer.ggml.merges)")
        found: list[tuple[str, str]] = []
        ids = self.ids
        for rule in value:
            cut = rule.find(" ", 1)
            if cut < 0:
                continue
            left, right = rule[:cut], rule[cut + 1 :]
            if left in ids and right in ids and left + right in ids:
                found.append((left, right))
        return found

    def charsmap(self) -> bytes:
        value = self._metadata.get(_PREFIX + "precompiled_charsmap")
        return value.tobytes() if isinstance(value, np.ndarray) else b""

    def chat_templates(self) -> tuple[str | None, dict[str, str]]:
        prefix = "tokenizer.chat_template"
        default = self._metadata.get(prefix)
        named = {
            key[len(prefix) + 1 :]: value
            for key, value in self._metadata.items()
            if key.startswith(prefix + ".") and isinstance(value, str)
        }
        return (default if isinstance(default, str) else None), named

    def digest(self) -> str:
        """Covers what decides encoding: kind, rule, tokens, types and merges."""
        sha = hashlib.sha256()
        merges = self._metadata.get(_PREFIX + "merges")
        for strings in ((self.kind, self.text("pre") or ""), self.tokens, merges if isinstance(merges, list) else ()):
            sha.update("\0".join(strings).encode("utf-8", "replace"))
            sha.update(b"\1")
        sha.update(np.asarray(self.types, dtype=np.int32).tobytes())
        return sha.hexdigest()


def _finish(
    vocabulary: _Vocabulary,
    backend: tokenizers.Tokenizer,
    piece_encoding: PieceEncoding,
    *,
    bos_id: int | None,
    eos_id: int | None,
    add_bos: bool,
    add_eos: bool,
    unk_id: int | None = None,
    strips_first_space: bool = False,
) -> TokenizerParts:
    """Add control and user-defined tokens, and collect the ids that every kind has."""
    types = vocabulary.types
    turn_ends = {vocabulary.ids[text] for text in _TURN_ENDS if text in vocabulary.ids}
    special = {index for index, kind in enumerate(types) if kind in (CONTROL, UNKNOWN)}
    special |= {index for index in turn_ends if looks_like_marker(vocabulary.tokens[index])}
    defined = {index for index, kind in enumerate(types) if kind == USER_DEFINED} - special
    backend.add_special_tokens([_added(vocabulary, index, special=True) for index in sorted(special)])
    backend.add_tokens([_added(vocabulary, index, special=False) for index in sorted(defined)])
    template, named = vocabulary.chat_templates()
    ends = {vocabulary.token_id(name) for name in ("eot_token_id", "eom_token_id")} | {eos_id} | (turn_ends & special)
    if "<|return|>" in vocabulary.ids or "<|calls|>" in vocabulary.ids:
        ends.discard(vocabulary.ids.get("<|end|>"))  # there it closes one message of several in a turn
    pad_id = vocabulary.token_id("padding_token_id")
    tokens = {"bos_token": bos_id, "eos_token": eos_id, "unk_token": unk_id, "pad_token": pad_id}
    return TokenizerParts(
        backend=backend,
        piece_encoding=piece_encoding,
        source_digest=vocabulary.digest(),
        special_ids=frozenset(special),
        bos_id=bos_id,
        eos_ids=frozenset(index for index in ends if index is not None),
        pad_id=pad_id,
        prefix_ids=(bos_id,) if add_bos and bos_id is not None else (),
        suffix_ids=(eos_id,) if add_eos and eos_id is not None else (),
        special_tokens={name: vocabulary.tokens[index] for name, index in tokens.items() if index is not None},
        chat_template=template,
        named_templates=named,
        fim_ids=_fim_ids(vocabulary),
        strips_first_space=strips_first_space,
        constrainable=vocabulary.kind in ("gpt2", "gemma4"),
        warnings=tuple(vocabulary.warnings),
    )


def _added(vocabulary: _Vocabulary, index: int, *, special: bool) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(vocabulary.tokens[index], special=special, normalized=False)


def _fim_ids(vocabulary: _Vocabulary) -> dict[FimRole, int]:
    found: dict[FimRole, int] = {}
    for role, keys in _FIM_KEYS.items():
        for key in keys:
            token_id = vocabulary.token_id(key)
            if token_id is not None:
                found.setdefault(role, token_id)
    return found


def _byte_level_bpe(vocabulary: _Vocabulary) -> TokenizerParts:
    """GPT-2 style BPE, and its variant on plain UTF-8 with byte fallback (Gemma 4)."""
    name = "gemma4" if vocabulary.kind == "gemma4" else vocabulary.text("pre") or ""
    if not name:
        name = "default"
        vocabulary.warnings.append("the GGUF file names no pre-tokenizer; word splitting may differ from the model's own")
    rule = pre_tokenizer_rules().get(name)
    if rule is None:
        raise StartupError(f"GGUF pre-tokenizer '{name[:40]}' is not supported")
    model = models.BPE(
        vocab=vocabulary.ids,
        merges=vocabulary.merges(),
        ignore_merges=rule.ignore_merges,
        byte_fallback=not rule.byte_encoded,
        fuse_unk=not rule.byte_encoded,
    )
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = rule.build()
    if rule.byte_encoded:
        backend.decoder = decoders.ByteLevel()
    else:
        backend.normalizer = normalizers.Replace(" ", "▁")
    eos_id = vocabulary.token_id("eos_token_id")
    add_bos = vocabulary.flag("add_bos_token", rule.adds_bos) or name == "gemma4"
    return _finish(
        vocabulary,
        backend,
        "byte_level" if rule.byte_encoded else "sentencepiece",
        bos_id=vocabulary.token_id("bos_token_id"),
        eos_id=eos_id,
        add_bos=add_bos,
        add_eos=vocabulary.flag("add_eos_token", False),
        unk_id=vocabulary.token_id("unknown_token_id"),
    )


def _sentencepiece_bpe(vocabulary: _Vocabulary) -> TokenizerParts:
    """SentencePiece BPE with byte fallback (Llama 2, Mistral, Phi-3, Gemma 1 to 3)."""
    unk_id = vocabulary.token_id("unknown_token_id", 0)
    adds_space = vocabulary.flag("add_space_prefix", True)
    pieces = SentencePieceVocabulary(
        vocabulary.tokens, vocabulary.scores(), vocabulary.types, unk_id, adds_space="each" if adds_space else "no"
    )
    return _finish(
        vocabulary,
        bpe_backend(pieces),
        "sentencepiece",
        bos_id=vocabulary.token_id("bos_token_id", 1),
        eos_id=vocabulary.token_id("eos_token_id", 2),
        add_bos=vocabulary.flag("add_bos_token", True),
        add_eos=vocabulary.flag("add_eos_token", False),
        unk_id=unk_id,
        strips_first_space=adds_space,
    )


def _unigram(vocabulary: _Vocabulary) -> TokenizerParts:
    """SentencePiece Unigram (T5, XLM-RoBERTa)."""
    unk_id = vocabulary.token_id("unknown_token_id", 2)
    adds_space = vocabulary.flag("add_space_prefix", True)
    pieces = SentencePieceVocabulary(
        vocabulary.tokens,
        vocabulary.scores(),
        vocabulary.types,
        unk_id,
        charsmap=vocabulary.charsmap(),
        adds_space="each" if adds_space else "no",
        removes_extra_space=vocabulary.flag("remove_extra_whitespaces", False),
    )
    return _finish(
        vocabulary,
        unigram_backend(pieces),
        "sentencepiece",
        bos_id=vocabulary.token_id("bos_token_id"),
        eos_id=vocabulary.token_id("eos_token_id", 1),
        add_bos=vocabulary.flag("add_bos_token", False),
        add_eos=vocabulary.flag("add_eos_token", True),
        unk_id=unk_id,
        strips_first_space=adds_space,
    )


def _wordpiece(vocabulary: _Vocabulary) -> TokenizerParts:
    """BERT WordPiece. GGUF marks the start of a word (▁); the model marks continuations (##)."""
    unk_id = vocabulary.token_id("unknown_token_id", 100)
    vocabulary.tokens = [
        token if kind in (CONTROL, UNKNOWN) else token[1:] if token.startswith("▁") else "##" + token
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=False)
    ]
    vocabulary.ids = {}
    for index, token in enumerate(vocabulary.tokens):
        vocabulary.ids.setdefault(token, index)
    unknown = vocabulary.tokens[unk_id] if unk_id is not None else "[UNK]"
    backend = tokenizers.Tokenizer(models.WordPiece(vocab=vocabulary.ids, unk_token=unknown, max_input_chars_per_word=100))
    lowercase = vocabulary.flag("normalizer.lowercase", True)
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=vocabulary.flag("normalizer.strip_accents", lowercase)
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    cls_id = vocabulary.token_id("cls_token_id", vocabulary.token_id("bos_token_id", 101))
    sep_id = vocabulary.token_id("seperator_token_id", vocabulary.token_id("eos_token_id", 102))
    return _finish(
        vocabulary,
        backend,
        "wordpiece",
        bos_id=cls_id,
        eos_id=sep_id,
        add_bos=True,
        add_eos=True,
        unk_id=unk_id,
        strips_first_space=True,
    )

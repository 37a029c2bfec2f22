"""What a loader hands to :class:`~mlxcel.text.tokenizer.Tokenizer`, and the naming facts loaders share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import tokenizers

PieceEncoding = Literal["byte_level", "sentencepiece", "wordpiece", "plain"]
FimRole = Literal["prefix", "suffix", "middle", "pad", "repo", "sep"]

# Fill-in-the-middle markers by the spellings that model families use.
FIM_SPELLINGS: Mapping[FimRole, tuple[str, ...]] = {
    "prefix": ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<｜fim▁begin｜>", "▁<PRE>", "<PRE>", "<|code_prefix|>",
               "<|prefix|>", "[PREFIX]"),
    "suffix": ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<｜fim▁hole｜>", "▁<SUF>", "<SUF>", "<|code_suffix|>",
               "<|suffix|>", "[SUFFIX]"),
    "middle": ("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<｜fim▁end｜>", "▁<MID>", "<MID>", "<|code_middle|>",
               "<|middle|>", "[MIDDLE]"),
    "pad": ("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<PAD>"),
    "repo": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<repo_name>", "<reponame>", "<REPO>"),
    "sep": ("<|file_sep|>", "<file_sep>", "<|file_separator|>"),
}  # fmt: skip

# Vocabularies often list markers such as <think> or <tool_call> as ordinary added tokens. Typed by a user they are as
# powerful as control tokens, so for protection they count as such. HTML-like entries (<b>, <table>) stay ordinary.
_MARKER_SHAPE = re.compile(
    r"<\|.*>|<.*\|>|<｜.*｜>|\[/?[A-Z][A-Z_ ]*\]"
    r"|</?(?:\w+:)?(?:think|thinking|reasoning|tool|tools|tool_\w+|function\w*|arg_\w+|response|start_of_\w+|end_of_\w+|fim\W?\w+)>"
)


def byte_level_alphabet() -> dict[str, int]:
    """The printable stand-ins of GPT-2 byte-level BPE: bytes that print stand for themselves, the rest start at U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(0x100 + offset): byte for offset, byte in enumerate(others)})
    return alphabet


def looks_like_marker(text: str) -> bool:
    """True for spellings that steer a model rather than say something."""
    return _MARKER_SHAPE.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """A loaded vocabulary before it is wrapped.

    Attributes:
        backend: the tokenizer without truncation and padding. The wrapper adds private tokens to it and so owns it.
        piece_encoding: how a vocabulary entry spells bytes.
        source_digest: hex digest of the files it came from.
        special_ids: control tokens: skipped by ``skip_special`` and not parsed from protected text.
        bos_id, pad_id: None when the model has none.
        eos_ids: every token that ends a turn.
        prefix_ids, suffix_ids: put around a text by ``add_special``.
        special_tokens: template variables (``bos_token`` and so on).
        chat_template, named_templates: sources as shipped.
        fim_ids: declared fill-in-the-middle ids; known spellings are added by the wrapper.
        strips_first_space: decoding a whole text drops the space that encoding put in front.
        constrainable: a BPE vocabulary whose tokens' bytes are known exactly.
        warnings: oddities worth a log line.
    """

    backend: tokenizers.Tokenizer
    piece_encoding: PieceEncoding
    source_digest: str
    special_ids: frozenset[int] = frozenset()
    bos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    pad_id: int | None = None
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_template: str | None = None
    named_templates: Mapping[str, str] = field(default_factory=dict)
    fim_ids: Mapping[FimRole, int] = field(default_factory=dict)
    strips_first_space: bool = False
    constrainable: bool = False
    warnings: tuple[str, ...] = ()

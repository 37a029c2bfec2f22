"""Text to token ids and back, for every vocabulary format mlxcel loads.

One class wraps the Rust tokenizer. Control tokens are never parsed by the backend itself: :class:`Tokenizer` adds a private
alias for each and replaces the spellings it trusts before encoding. So "parse control tokens" is a choice per call and even
per stretch of text, on one shared, thread-safe backend.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import tokenizers
from tokenizers import processors

from mlxcel.core.errors import StartupError
from mlxcel.text.control_text import ControlTextScanner
from mlxcel.text.tokenizer_parts import FIM_SPELLINGS, FimRole, TokenizerParts, byte_level_alphabet, looks_like_marker

# A Unicode noncharacter: never interchanged as text. An alias is this plus one private-use character.
_ALIAS_LEAD = "\ufdd0"
_ALIAS_BASE = 0xF0000
_HOLE = _ALIAS_LEAD + "hole "  # fills an id that names nothing
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """An immutable, thread-safe tokenizer. Build it with :func:`load_tokenizer`.

    Attributes:
        vocab_size: one more than the largest token id.
        fim_ids: fill-in-the-middle token ids by role; empty unless prefix, suffix and middle are all there.
        fingerprint: hex digest of everything that decides encoding, decoding and turn ends.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self._backend = parts.backend
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.post_processor = processors.Sequence([])  # it would trim offsets; what it adds is in the parts
        self.vocab_size = _id_bound(self._backend)
        added = self._backend.get_added_tokens_decoder()
        self._special_ids = parts.special_ids
        self._added_text = {token_id: token.content for token_id, token in added.items()}
        self._alias_of: dict[str, str] = {}
        self._id_of_alias: dict[int, int] = {}
        self._install_aliases(added)
        self._scanner = ControlTextScanner(self._alias_of)
        self._alphabet = byte_level_alphabet()
        self._bytes_of: list[bytes | None] = [None] * self.vocab_size
        self.fim_ids: Mapping[FimRole, int] = self._find_fim_ids()
        self.fingerprint = self._make_fingerprint()

    # ---- facts ------------------------------------------------------------------------------------------------------

    @property
    def bos_id(self) -> int | None:
        return self._parts.bos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        return self._parts.eos_ids

    @property
    def pad_id(self) -> int | None:
        return self._parts.pad_id

    @property
    def adds_bos(self) -> bool:
        """True when ``add_special`` puts a beginning-of-sequence token in front."""
        return self.bos_id is not None and self._parts.prefix_ids[:1] == (self.bos_id,)

    @property
    def chat_template(self) -> str | None:
        """The default template source shipped with the model."""
        return self._parts.chat_template

    @property
    def named_templates(self) -> Mapping[str, str]:
        """Further template sources by name (``tool_use``, ``rag``)."""
        return self._parts.named_templates

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Template variables: ``bos_token``, ``eos_token`` and their like, as text."""
        return self._parts.special_tokens

    @property
    def control_markers(self) -> frozenset[str]:
        """Spellings that become control tokens when parsed; protected text must not contain them unguarded."""
        return frozenset(self._alias_of)

    @property
    def byte_level(self) -> bool:
        """True for byte-level BPE."""
        return self._parts.piece_encoding == "byte_level"

    @property
    def constrainable(self) -> bool:
        """True when constrained decoding supports this vocabulary: a BPE whose tokens' bytes are known exactly."""
        return self._parts.constrainable and bool(self.eos_ids)

    @property
    def strips_first_space(self) -> bool:
        """True when decoding a whole text drops the space that encoding puts in front of it."""
        return self._parts.strips_first_space

    @property
    def warnings(self) -> tuple[str, ...]:
        """Oddities found while loading, worth a log line each."""
        return self._parts.warnings

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    @property
    def special_ids(self) -> frozenset[int]:
        return self._special_ids

    def token_id(self, text: str) -> int | None:
        """The id of the vocabulary entry spelled exactly ``text``."""
        found = self._backend.token_to_id(text)
        return found if found is not None and found < self.vocab_size else None

    def piece(self, token_id: int) -> str:
        """The vocabulary's own spelling of a token (``Ġthe``, ``▁the``); empty for ids that name nothing."""
        if not 0 <= token_id < self.vocab_size:
            return ""
        found = self._backend.id_to_token(token_id) or ""
        return "" if found.startswith(_HOLE) else found

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes a token stands for, which need not be whole UTF-8; empty for ids that name nothing."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        known = self._bytes_of[token_id]
        if known is None:
            known = self._bytes_of[token_id] = self._compute_bytes(token_id)
        return known

    # ---- encoding ---------------------------------------------------------------------------------------------------

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Token ids of ``text``.

        Args:
            add_special: surround with the model's own begin and end tokens. A beginning that the text already has is
                not doubled.
            parse_special: control-token spellings become control tokens; False encodes them as ordinary text.
        """
        ids = self._encode(text, parse_special, None)
        return self._surround(ids) if add_special else ids

    def encode_guarded(self, text: str, guard: str) -> list[int]:
        """Like :meth:`encode`, but a spelling right after the character ``guard`` is ordinary text. Guards vanish."""
        return self._encode(text, True, guard)

    def encode_with_ends(self, text: str, guard: str) -> tuple[list[int], list[int]]:
        """:meth:`encode_guarded`, and for each token the character offset in the guard-free text where it ends.

        All tokens of one character that takes several end where the character does.
        """
        stretches, shifts = self._alias(text, guard)
        ids: list[int] = []
        ends: list[int] = []
        offset = 0
        for stretch in stretches:
            encoding = self._backend.encode(stretch, add_special_tokens=False)
            ids.extend(self._unalias(encoding.ids))
            ends.extend(offset + end for _, end in encoding.offsets)
            offset += len(stretch)
        return ids, _unshift(ends, shifts)

    def _encode(self, text: str, parse_special: bool, guard: str | None) -> list[int]:
        stretches = self._alias(text, guard)[0] if parse_special else _Stretches.of(text)
        ids: list[int] = []
        for stretch in stretches:
            ids.extend(self._unalias(self._backend.encode(stretch, add_special_tokens=False).ids))
        return ids

    def _alias(self, text: str, guard: str | None) -> tuple[list[str], list[tuple[int, int]]]:
        """Replace trusted control spellings by aliases and drop the guards.

        Returns the stretches to encode one by one and, for each replacement, its offset in their concatenation and how
        many characters it saved.
        """
        out = _Stretches()
        shifts: list[tuple[int, int]] = []
        position = 0
        for start, marker in self._scanner.spans(text):
            out.add_text(text[position:start], guard)
            if guard is not None and start > 0 and text[start - 1] == guard:
                out.add_text(marker, guard)
            else:
                alias = self._alias_of[marker]
                shifts.append((out.length, len(marker) - len(alias)))
                out.add_alias(alias)
            position = start + len(marker)
        out.add_text(text[position:], guard)
        return out.finish(), shifts

    def _unalias(self, ids: Iterable[int]) -> list[int]:
        known = self._id_of_alias
        return [known.get(token_id, token_id) for token_id in ids]

    def _surround(self, ids: list[int]) -> list[int]:
        prefix, suffix = list(self._parts.prefix_ids), list(self._parts.suffix_ids)
        if prefix and ids[: len(prefix)] == prefix:
            prefix = []
        if suffix and ids[-len(suffix) :] == suffix:
            suffix = []
        return prefix + ids + suffix

    # ---- decoding ---------------------------------------------------------------------------------------------------

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """The text of ``ids``. Bytes that are not UTF-8 become U+FFFD."""
        from mlxcel.text.detokenize import Detokenizer

        detokenizer = Detokenizer(self, skip_special=skip_special)
        return detokenizer.push(ids) + detokenizer.flush()

    def _compute_bytes(self, token_id: int) -> bytes:
        added = self._added_text.get(token_id)
        if added is not None:
            return added.encode("utf-8", "replace")
        piece = self.piece(token_id)
        encoding = self._parts.piece_encoding
        if encoding == "byte_level":
            try:
                return bytes(map(self._alphabet.__getitem__, piece))
            except KeyError:  # an entry outside the alphabet stands for itself
                return piece.encode("utf-8", "replace")
        if encoding == "sentencepiece":
            byte = _BYTE_PIECE.fullmatch(piece)
            return bytes.fromhex(byte[1]) if byte else piece.replace("▁", " ").encode("utf-8", "replace")
        if encoding == "wordpiece":
            return (piece[2:] if piece.startswith("##") else " " + piece).encode("utf-8", "replace")
        return piece.encode("utf-8", "replace")

    # ---- construction -----------------------------------------------------------------------------------------------

    def _install_aliases(self, added: Mapping[int, tokenizers.AddedToken]) -> None:
        """Give each control token an alias, and make the backend treat its real spelling as ordinary text."""
        controls = {
            token_id: token
            for token_id, token in added.items()
            if token_id in self._special_ids or looks_like_marker(token.content)
        }
        hidden = [tokenizers.AddedToken(token.content, special=True, normalized=False) for token in controls.values()]
        self._backend.add_special_tokens(hidden)
        self._backend.encode_special_tokens = True
        count = self._backend.get_vocab_size(with_added_tokens=True)
        # New ids follow the *count*; a vocabulary with holes must first be filled up to its largest id.
        self._backend.add_tokens([f"{_HOLE}{number}" for number in range(self.vocab_size - count)])
        aliases = []
        for index, token in enumerate(controls.values()):
            alias = _ALIAS_LEAD + chr(_ALIAS_BASE + index)
            aliases.append(tokenizers.AddedToken(alias, lstrip=token.lstrip, rstrip=token.rstrip, normalized=False))
            self._alias_of[token.content] = alias
        self._backend.add_tokens(aliases)
        for token_id, token in controls.items():
            alias_id = self._backend.token_to_id(self._alias_of[token.content])
            if alias_id is None or alias_id < self.vocab_size:
                raise StartupError("the tokenizer's vocabulary cannot be extended; its token ids are inconsistent")
            self._id_of_alias[alias_id] = token_id

    def _find_fim_ids(self) -> dict[FimRole, int]:
        found = dict(self._parts.fim_ids)
        for role, spellings in FIM_SPELLINGS.items():
            for spelling in spellings:
                token_id = self.token_id(spelling)
                if role not in found and token_id is not None:
                    found[role] = token_id
        # A lone <PAD> or <repo_name> does not make a model that fills in.
        return found if {"prefix", "suffix", "middle"} <= found.keys() else {}

    def _make_fingerprint(self) -> str:
        parts = self._parts
        facts = (parts.source_digest, sorted(self._special_ids), sorted(self.eos_ids), parts.prefix_ids, parts.suffix_ids)
        return hashlib.sha256(repr(facts).encode()).hexdigest()


def _id_bound(backend: tokenizers.Tokenizer) -> int:
    """One more than the largest id; vocabularies may have holes, so a count is not enough."""
    count = backend.get_vocab_size(with_added_tokens=True)
    if all(backend.id_to_token(token_id) is not None for token_id in range(count)):
        return count  # as many ids as tokens: none lies beyond (and reading the whole vocabulary is slower)
    return max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1


class _Stretches:
    """Collects the text to encode, cut so that no stretch spells an alias that :meth:`Tokenizer._alias` did not write.

    Only text that itself contains the noncharacter U+FDD0 is ever cut.
    """

    def __init__(self) -> None:
        self.length = 0
        self._done: list[str] = []
        self._current: list[str] = []

    @classmethod
    def of(cls, text: str) -> list[str]:
        stretches = cls()
        stretches.add_text(text, None)
        return stretches.finish()

    def add_alias(self, alias: str) -> None:
        self._current.append(alias)
        self.length += len(alias)

    def add_text(self, text: str, guard: str | None) -> None:
        if guard is not None:
            text = text.replace(guard, "")
        self.length += len(text)
        head, *rest = text.split(_ALIAS_LEAD)
        self._current.append(head)
        for part in rest:
            self._done.append("".join(self._current) + _ALIAS_LEAD)
            self._current = [part]

    def finish(self) -> list[str]:
        return [*self._done, "".join(self._current)]


def _unshift(ends: list[int], shifts: list[tuple[int, int]]) -> list[int]:
    """Map ascending end offsets in aliased text back to the text before aliasing."""
    mapped: list[int] = []
    saved = index = 0
    for end in ends:
        while index < len(shifts) and shifts[index][0] < end:
            saved += shifts[index][1]
            index += 1
        mapped.append(end + saved)
    return mapped


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a model folder (Hugging Face layout) or of a GGUF file.

    Raises:
        StartupError: nothing usable is there, or a file is damaged.
    """
    if path.is_dir():
        from mlxcel.text.hf_tokenizer import load_folder_tokenizer

        return Tokenizer(load_folder_tokenizer(path))
    from mlxcel.text.gguf_tokenizer import load_gguf_tokenizer

    return Tokenizer(load_gguf_tokenizer(path))

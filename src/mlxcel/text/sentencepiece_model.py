"""Reading ``tokenizer.model``: just enough of the protocol-buffer wire format for SentencePiece's ``ModelProto``.

Field numbers are those of ``sentencepiece_model.proto``. Lengths are checked, so a damaged file ends in StartupError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from mlxcel.core.errors import StartupError
from mlxcel.text.sentencepiece_backend import NORMAL, SentencePieceVocabulary

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """A parsed model. Special ids are None when the model has no such token."""

    vocabulary: SentencePieceVocabulary
    algorithm: Literal["unigram", "bpe"]
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None


def parse_sentencepiece_model(data: bytes) -> SentencePieceModel:
    """Parse the bytes of a ``tokenizer.model`` file.

    Raises:
        StartupError: the bytes are no SentencePiece model, or of a kind other than Unigram and BPE.
    """
    pieces: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            piece = dict(_fields(value))
            pieces.append(_text(piece.get(1)))
            scores.append(_float(piece.get(2)))
            kinds.append(_int(piece.get(3), NORMAL))
        elif number == 2 and isinstance(value, bytes):
            trainer = dict(_fields(value))
        elif number == 3 and isinstance(value, bytes):
            normalizer = dict(_fields(value))
    algorithm = _int(trainer.get(3), 1)
    if not pieces or algorithm not in (1, 2):
        raise StartupError("tokenizer.model is not a SentencePiece model of kind Unigram or BPE")

    def special(number: int, default: int) -> int | None:
        token_id = _int(trainer.get(number), default)
        return token_id if 0 <= token_id < len(pieces) else None

    charsmap = normalizer.get(2, b"")
    vocabulary = SentencePieceVocabulary(
        pieces=pieces,
        scores=scores,
        kinds=kinds,
        unk_id=special(40, 0),
        charsmap=charsmap if isinstance(charsmap, bytes) else b"",
        adds_space="each" if _int(normalizer.get(3), 1) else "no",
        removes_extra_space=bool(_int(normalizer.get(4), 1)),
    )
    return SentencePieceModel(
        vocabulary, "bpe" if algorithm == 2 else "unigram", special(41, 1), special(42, 2), special(43, -1)
    )


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """``(field number, value)`` of one message; fixed-width values come as their bytes."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire_type == _BYTES:
            length, position = _varint(data, position)
        elif wire_type in (_FIXED32, _FIXED64):
            length = 4 if wire_type == _FIXED32 else 8
        else:
            raise StartupError("tokenizer.model is damaged")
        if length > len(data) - position:
            raise StartupError("tokenizer.model is truncated")
        yield number, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if position + index >= len(data):
            raise StartupError("tokenizer.model is truncated")
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise StartupError("tokenizer.model is damaged")


def _int(value: int | bytes | None, default: int) -> int:
    """A 32-bit signed field."""
    if not isinstance(value, int):
        return default
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _float(value: int | bytes | None) -> float:
    return float(struct.unpack("<f", value)[0]) if isinstance(value, bytes) and len(value) == 4 else 0.0


def _text(value: int | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""

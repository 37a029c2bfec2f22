"""The files a model folder may keep its vocabulary in, each turned into a backend.

``tokenizer.json`` is taken as it is; ``tokenizer.model`` (SentencePiece), ``*.tiktoken``, ``vocab.json`` with ``merges.txt``
and ``vocab.txt`` (BERT) are converted. What they leave open is read from ``tokenizer_config.json``.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from mlxcel.core.errors import StartupError
from mlxcel.text.gguf_pretokenizers import pre_tokenizer_rules
from mlxcel.text.sentencepiece_backend import CONTROL, UNKNOWN, USER_DEFINED, bpe_backend, merges_by_score, unigram_backend
from mlxcel.text.sentencepiece_model import parse_sentencepiece_model
from mlxcel.text.tokenizer_parts import PieceEncoding, byte_level_alphabet

_MAX_FILE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class VocabularyFile:
    """A backend and what its file says about it.

    Attributes:
        adds_bos, adds_eos: what the file's kind implies where the configuration is silent.
        bos, eos, pad: token texts that the file itself names.
    """

    backend: tokenizers.Tokenizer
    piece_encoding: PieceEncoding
    digest: str
    strips_first_space: bool = False
    constrainable: bool = False
    adds_bos: bool = False
    adds_eos: bool = False
    bos: str | None = None
    eos: str | None = None
    pad: str | None = None


def load_vocabulary_file(folder: Path, config: Mapping[str, Any]) -> VocabularyFile:
    """Load the best vocabulary file of a model folder.

    Raises:
        StartupError: there is none, or it is damaged.
    """
    tiktoken_files = sorted(path.name for path in folder.glob("*.tiktoken"))
    loaders: tuple[tuple[str, Callable[[Path, Mapping[str, Any]], VocabularyFile]], ...] = (
        ("tokenizer.json", _tokenizer_json),
        ("tokenizer.model", _sentencepiece_or_tiktoken),
        ("spiece.model", _sentencepiece_or_tiktoken),
        ("tiktoken.model", _tiktoken),
        *((name, _tiktoken) for name in tiktoken_files),
        ("vocab.json", _vocab_and_merges),
        ("vocab.txt", _bert_vocabulary),
    )
    for name, load in loaders:
        path = folder / name
        if path.is_file():
            if path.stat().st_size > _MAX_FILE_BYTES:
                raise StartupError(f"{name} is too large to be a vocabulary")
            try:
                return load(path, config)
            except StartupError:
                raise
            except Exception as error:  # the Rust constructors raise bare Exception
                raise StartupError(f"{name} is damaged or of an unsupported kind") from error
    raise StartupError(
        f"no tokenizer was found in {folder.name}: expected tokenizer.json, tokenizer.model, a .tiktoken file, "
        "vocab.json with merges.txt, or vocab.txt"
    )


def _tokenizer_json(path: Path, config: Mapping[str, Any]) -> VocabularyFile:
    raw = path.read_bytes()
    document = orjson.loads(raw)
    decoder, model = document.get("decoder") or {}, document.get("model") or {}
    piece_encoding = _piece_encoding(decoder, model)
    return VocabularyFile(
        backend=tokenizers.Tokenizer.from_buffer(raw),
        piece_encoding=piece_encoding,
        digest=hashlib.sha256(raw).hexdigest(),
        strips_first_space=_strips_first_space(decoder),
        constrainable=model.get("type") == "BPE" and piece_encoding in ("byte_level", "sentencepiece"),
    )


def _piece_encoding(decoder: Mapping[str, Any], model: Mapping[str, Any]) -> PieceEncoding:
    kinds = {str(step.get("type")) for step in decoder.get("decoders", [decoder])}
    if "ByteLevel" in kinds:
        return "byte_level"
    if kinds & {"ByteFallback", "Metaspace"} or model.get("byte_fallback"):
        return "sentencepiece"
    return "wordpiece" if "WordPiece" in kinds else "plain"


def _strips_first_space(decoder: Mapping[str, Any]) -> bool:
    for step in decoder.get("decoders", [decoder]):
        if step.get("type") == "Strip" and step.get("content") == " " and step.get("start", 0) > 0:
            return True
        if step.get("type") == "Metaspace":
            return bool(step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True))
        if step.get("type") == "WordPiece":
            return True
    return False


def _sentencepiece_or_tiktoken(path: Path, config: Mapping[str, Any]) -> VocabularyFile:
    """``tokenizer.model`` is SentencePiece for most families and a tiktoken list for some."""
    raw = path.read_bytes()
    if _looks_like_tiktoken(raw):
        return _tiktoken(path, config)
    model = parse_sentencepiece_model(raw)
    vocabulary = model.vocabulary
    if vocabulary.adds_space == "each" and config.get("legacy") is False:
        vocabulary = replace(vocabulary, adds_space="first")
    backend = bpe_backend(vocabulary) if model.algorithm == "bpe" else unigram_backend(vocabulary)
    for index, (piece, kind) in enumerate(zip(vocabulary.pieces, vocabulary.kinds, strict=True)):
        if kind in (CONTROL, UNKNOWN) or index in (model.bos_id, model.eos_id):
            backend.add_special_tokens([tokenizers.AddedToken(piece, special=True, normalized=False)])
        elif kind == USER_DEFINED:
            backend.add_tokens([tokenizers.AddedToken(piece, normalized=False)])

    def text(token_id: int | None) -> str | None:
        return None if token_id is None else vocabulary.pieces[token_id]

    return VocabularyFile(
        backend=backend,
        piece_encoding="sentencepiece",
        digest=hashlib.sha256(raw).hexdigest(),
        strips_first_space=vocabulary.adds_space != "no",
        adds_bos=model.algorithm == "bpe",
        adds_eos=model.algorithm == "unigram",
        bos=text(model.bos_id),
        eos=text(model.eos_id),
        pad=text(model.pad_id),
    )


def _looks_like_tiktoken(raw: bytes) -> bool:
    return re.match(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n", raw) is not None


def _tiktoken(path: Path, config: Mapping[str, Any]) -> VocabularyFile:
    """Lines of base64 bytes and rank (https://github.com/openai/tiktoken). Merging the pair whose join has the lowest rank
    is byte-pair encoding with the rank as score."""
    raw = path.read_bytes()
    letter_of = {byte: letter for letter, byte in byte_level_alphabet().items()}
    ids: dict[str, int] = {}
    for line in raw.splitlines():
        if line:
            encoded, rank = line.split()
            ids["".join(map(letter_of.__getitem__, base64.b64decode(encoded, validate=True)))] = int(rank)
    scores = {piece: -float(rank) for piece, rank in ids.items()}
    rules = pre_tokenizer_rules()
    class_name = str(config.get("tokenizer_class", "")).lower()
    kimi = path.name == "tiktoken.model" or "tiktoken" in class_name
    rule = rules["kimi-k2"] if kimi else rules["qwen2"] if "qwen" in class_name else rules["llama-bpe"]
    backend = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges_by_score(list(ids), ids, scores), ignore_merges=True))
    backend.pre_tokenizer = rule.build()
    backend.decoder = decoders.ByteLevel()
    return VocabularyFile(backend, "byte_level", hashlib.sha256(raw).hexdigest())


def _vocab_and_merges(path: Path, config: Mapping[str, Any]) -> VocabularyFile:
    """Byte-level BPE as GPT-2 and Qwen2 first shipped it."""
    merges_path = path.with_name("merges.txt")
    if not merges_path.is_file():
        raise StartupError("vocab.json needs merges.txt beside it")
    raw, merges_raw = path.read_bytes(), merges_path.read_bytes()
    lines = merges_raw.decode("utf-8").split("\n")
    merges = [(left, right) for left, _, right in (line.rstrip("\r").partition(" ") for line in lines) if left and right]
    if lines and lines[0].startswith("#version"):
        merges = merges[1:]
    is_qwen2 = str(config.get("tokenizer_class", "")).startswith("Qwen2")
    rule = pre_tokenizer_rules()["qwen2" if is_qwen2 else "gpt-2"]
    backend = tokenizers.Tokenizer(models.BPE(vocab=orjson.loads(raw), merges=merges))
    if is_qwen2:
        backend.normalizer = normalizers.NFC()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=bool(config.get("add_prefix_space", False)), use_regex=False)
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    backend.decoder = decoders.ByteLevel()
    return VocabularyFile(backend, "byte_level", hashlib.sha256(raw + merges_raw).hexdigest(), constrainable=True)


def _bert_vocabulary(path: Path, config: Mapping[str, Any]) -> VocabularyFile:
    raw = path.read_bytes()
    ids = {line.rstrip("\r"): index for index, line in enumerate(raw.decode("utf-8").rstrip("\n").split("\n"))}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab=ids, max_input_chars_per_word=100))
    lowercase = bool(config.get("do_lower_case", True))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=config.get("strip_accents"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return VocabularyFile(
        backend,
        "wordpiece",
        hashlib.sha256(raw).hexdigest(),
        strips_first_space=True,
        adds_bos=True,
        adds_eos=True,
        bos="[CLS]" if "[CLS]" in ids else None,
        eos="[SEP]" if "[SEP]" in ids else None,
        pad="[PAD]" if "[PAD]" in ids else None,
    )

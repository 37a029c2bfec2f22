"""Folders without ``tokenizer.json``: SentencePiece, tiktoken, vocab-and-merges and BERT vocabularies."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.core.errors import StartupError
from mlxcel.testing.tiny_tokenizer import build_tiny_tokenizer
from mlxcel.text.sentencepiece_model import parse_sentencepiece_model
from mlxcel.text.tokenizer import load_tokenizer
from mlxcel.text.tokenizer_parts import byte_level_alphabet

_LINES = ["the river runs past the old mill", "when the rain comes the wheel turns faster", "kůň a b c d e f g h"] * 6
_TEXTS = ["the river runs", "  two  spaces ", "kůň 東京 😀 naïve", "a\nb\tc", "the mill, the wheel; the rain"]


def train(folder: Path, **options: Any) -> sentencepiece.SentencePieceProcessor:
    settings_: dict[str, Any] = {"vocab_size": 340, "model_type": "bpe", "byte_fallback": True, "hard_vocab_limit": False}
    folder.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_LINES),
        model_prefix=str(folder / "tokenizer"),
        minloglevel=5,
        **{**settings_, **options},
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("plain", [True, False])
def test_sentencepiece_models_encode_as_sentencepiece_does(tmp_path: Path, kind: str, plain: bool) -> None:
    options: dict[str, Any] = {"model_type": kind}
    if plain:  # as Gemma: text as it is
        options |= {"add_dummy_prefix": False, "remove_extra_whitespaces": False, "normalization_rule_name": "identity"}
    reference = train(tmp_path, **options)
    tokenizer = load_tokenizer(tmp_path)
    for text in _TEXTS:
        assert tokenizer.encode(text) == reference.encode(text)
        assert tokenizer.decode(reference.encode(text)) == reference.decode(reference.encode(text))
    assert tokenizer.strips_first_space is not plain
    assert not tokenizer.constrainable
    assert not tokenizer.byte_level


def test_sentencepiece_special_tokens(tmp_path: Path) -> None:
    train(tmp_path, user_defined_symbols=["<mark>"], pad_id=3, remove_extra_whitespaces=False)
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.bos_id, tokenizer.pad_id) == (1, 3)
    assert tokenizer.eos_ids == {2}
    assert tokenizer.special_tokens["bos_token"] == "<s>"
    assert tokenizer.adds_bos
    assert tokenizer.encode("the", add_special=True)[0] == 1
    mark = tokenizer.token_id("<mark>")
    assert mark in tokenizer.encode("a<mark>b", parse_special=False), "defined by the model's author, not a control token"
    assert 1 in tokenizer.encode("a<s>b")
    assert 1 not in tokenizer.encode("a<s>b", parse_special=False)


def test_the_space_in_front_follows_the_legacy_switch(tmp_path: Path) -> None:
    train(tmp_path, remove_extra_whitespaces=False, normalization_rule_name="identity")
    spaced = load_tokenizer(tmp_path).encode("<s>the<s>the")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"legacy": False, "add_bos_token": False}))
    tokenizer = load_tokenizer(tmp_path)
    once = tokenizer.encode("the<s>the")
    assert len(set(spaced)) == 2, "a space in front of every stretch"
    assert b"".join(map(tokenizer.token_bytes, once)) == b" the<s>the"
    assert not tokenizer.adds_bos


def test_tiktoken_lists_encode_as_the_vocabulary_they_list(tmp_path: Path) -> None:
    reference = build_tiny_tokenizer()
    alphabet = byte_level_alphabet()
    lines = []
    for token_id in range(500):
        raw = bytes(alphabet[letter] for letter in reference.convert_ids_to_tokens(token_id))
        lines.append(base64.b64encode(raw) + b" " + str(token_id).encode())
    (tmp_path / "vocab.tiktoken").write_bytes(b"\n".join(lines) + b"\n")
    config = {
        "tokenizer_class": "QWenTokenizer",
        "eos_token": "<|endoftext|>",
        "added_tokens_decoder": {"500": {"content": "<|endoftext|>", "special": True}},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == 501
    assert tokenizer.eos_ids == {500}
    for text in ("The river runs", "héllo 東京\n\n", "What is the weather?"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert ids == reference.encode(text, add_special_tokens=False)
    assert tokenizer.byte_level
    assert not tokenizer.constrainable


def test_vocab_and_merges(tmp_path: Path) -> None:
    reference = build_tiny_tokenizer()
    model = json.loads(reference.backend_tokenizer.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    for config in ({}, {"tokenizer_class": "Qwen2Tokenizer"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
        tokenizer = load_tokenizer(tmp_path)
        for text in ("The river runs", "héllo 東京\n\n"):
            assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False)
    assert len(tokenizer.encode("IT'S")) == 4
    assert tokenizer.constrainable
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(StartupError, match=r"merges\.txt"):
        load_tokenizer(tmp_path)


def test_bert_vocabularies(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nriver\nrun\n##s\nÀ\n", encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("River runs", add_special=True) == [2, 4, 5, 6, 3]
    assert tokenizer.decode([4, 5, 6]) == "river runs"
    assert tokenizer.pad_id == 0
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "strip_accents": False}))
    assert load_tokenizer(tmp_path).encode("À River") == [7, 1]


class TestDamagedModels:
    def test_every_cut_is_refused_or_shorter(self, tmp_path: Path) -> None:
        train(tmp_path, vocab_size=300)
        raw = (tmp_path / "tokenizer.model").read_bytes()
        for length in range(0, len(raw), 97):
            try:
                model = parse_sentencepiece_model(raw[:length])
            except StartupError:
                continue
            assert len(model.vocabulary.pieces) <= 400

    @settings(max_examples=200, deadline=None)
    @given(st.binary(max_size=60))
    def test_noise_never_escapes_as_another_error(self, noise: bytes) -> None:
        with suppress(StartupError):
            parse_sentencepiece_model(noise)

    @pytest.mark.parametrize(
        ("name", "content"),
        [("tokenizer.model", b"YWJj 0\nnot base64!! 1\n"), ("x.tiktoken", b"YWJj zero\n"), ("vocab.txt", b"\xff\xfe"),
         ("spiece.model", b"\x0a\xff\xff\xff\xff\x0f"), ("vocab.json", b"[]")],
    )  # fmt: skip
    def test_the_file_is_named(self, tmp_path: Path, name: str, content: bytes) -> None:
        (tmp_path / name).write_bytes(content)
        (tmp_path / "merges.txt").write_text("a b\n")
        with pytest.raises(StartupError, match=r"tokenizer\.model|tiktoken|vocab|spiece"):
            load_tokenizer(tmp_path)

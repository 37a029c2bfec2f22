"""Tokenizers out of GGUF files: the packaged model, one small file of each kind, and damaged files."""

from __future__ import annotations

import itertools
import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from mlxcel.core.errors import StartupError
from mlxcel.testing.tiny_tokenizer import build_tiny_tokenizer
from mlxcel.text.gguf_metadata import read_gguf_metadata
from mlxcel.text.gguf_pretokenizers import pre_tokenizer_rules
from mlxcel.text.tokenizer import Tokenizer, load_tokenizer

_U32, _I32, _F32, _BOOL, _STRING, _ARRAY, _U64, _U8 = 4, 5, 6, 7, 8, 9, 10, 0
_PACKED = {_U8: "<B", _U32: "<I", _I32: "<i", _F32: "<f", _BOOL: "<?", _U64: "<Q"}


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _encoded(kind: int, value: Any) -> bytes:
    return _string(value) if kind == _STRING else struct.pack(_PACKED[kind], value)


def gguf_bytes(entries: dict[str, tuple[Any, ...]]) -> bytes:
    """A header with no tensors; an entry is ``(type, value)`` or ``(_ARRAY, item type, values)``."""
    out = b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries))
    for key, entry in entries.items():
        out += _string(key) + struct.pack("<I", entry[0])
        if entry[0] == _ARRAY:
            out += struct.pack("<IQ", entry[1], len(entry[2])) + b"".join(_encoded(entry[1], item) for item in entry[2])
        else:
            out += _encoded(*entry)
    return out


def load(folder: Path, entries: dict[str, tuple[Any, ...]]) -> Tokenizer:
    path = folder / "model.gguf"
    path.write_bytes(gguf_bytes({f"tokenizer.ggml.{key}": entry for key, entry in entries.items()}))
    return load_tokenizer(path)


def byte_level_entries(pre: str = "gpt-2") -> dict[str, tuple[Any, ...]]:
    reference = build_tiny_tokenizer()
    tokens = [reference.convert_ids_to_tokens(token_id) for token_id in range(512)]
    merges = [" ".join(pair) for pair in _merges(reference)]
    kinds = [1] * 500 + [3] * 6 + [4] * 6
    return {
        "model": (_STRING, "gpt2"),
        "pre": (_STRING, pre),
        "tokens": (_ARRAY, _STRING, tokens),
        "token_type": (_ARRAY, _I32, kinds),
        "merges": (_ARRAY, _STRING, merges),
        "eos_token_id": (_U32, 502),
    }


def _merges(reference: Any) -> list[tuple[str, str]]:
    model = json.loads(reference.backend_tokenizer.to_str())["model"]
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    return [(left, right) for left, right in pairs]


@pytest.fixture(scope="module")
def packaged(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(smollm2_path)


class TestThePackagedModel:
    def test_it_loads_without_reading_the_weights(self, smollm2_path: Path) -> None:
        started = time.process_time()
        read_gguf_metadata(smollm2_path)
        assert time.process_time() - started < 1.0

    def test_ids_equal_those_of_the_model_s_own_tokenizer(self, packaged: Tokenizer) -> None:
        """Golden ids from an independent conversion of the same vocabulary."""
        text = "Hello, world! 👩‍👩‍👧‍👦 ďábelské ódy 東京 हिन्दी 1234 it's\n\n\tx"
        golden = [
            19556, 28, 905, 17, 15107, 235, 119, 321, 231, 10813, 235, 119, 321, 231, 10813, 235, 117, 321, 231, 10813, 235,
            116, 24488, 233, 5415, 82, 1025, 91, 2756, 5549, 128, 13285, 17097, 247, 126, 16736, 122, 12335, 134, 27011,
            30658, 16525, 44757, 37189, 216, 33, 34, 35, 36, 357, 506, 1116, 197, 104,
        ]  # fmt: skip
        assert packaged.encode(text) == golden
        assert packaged.decode(golden) == text

    def test_its_facts(self, packaged: Tokenizer) -> None:
        assert packaged.vocab_size == 49152
        assert {packaged.piece(token_id) for token_id in packaged.eos_ids} == {"<|im_end|>", "<|endoftext|>"}
        assert (packaged.bos_id, packaged.pad_id, packaged.adds_bos) == (1, 2, False)
        assert packaged.special_tokens["bos_token"] == "<|im_start|>"
        assert packaged.chat_template is not None
        assert packaged.byte_level
        assert packaged.constrainable


class TestByteLevel:
    def test_it_equals_the_tokenizer_it_was_made_from(self, tmp_path: Path) -> None:
        tokenizer = load(tmp_path, byte_level_entries())
        reference = build_tiny_tokenizer()
        for text in ("The river", "it's 12  x\n\n", "héllo 東京 👩‍👩‍👧‍👦", "<|im_start|>user\n<think>hi</think><|im_end|>"):
            assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False)
        assert tokenizer.eos_ids == {500, 502}
        assert tokenizer.is_special(502)
        assert not tokenizer.is_special(508)

    def test_declared_fill_in_the_middle_ids_win(self, tmp_path: Path) -> None:
        entries = byte_level_entries() | {"fim_pre_token_id": (_U32, 42), "eot_token_id": (_U32, 77)}
        tokenizer = load(tmp_path, entries)
        assert tokenizer.fim_ids["prefix"] == 42
        assert tokenizer.fim_ids["suffix"] == tokenizer.token_id("<|fim_suffix|>")
        assert 77 in tokenizer.eos_ids

    def test_a_missing_rule_is_reported_and_an_unknown_one_refused(self, tmp_path: Path) -> None:
        entries = byte_level_entries()
        del entries["pre"]
        assert load(tmp_path, entries).warnings
        with pytest.raises(StartupError, match="pre-tokenizer 'brand-new'"):
            load(tmp_path, byte_level_entries("brand-new"))

    @pytest.mark.parametrize("name", sorted(pre_tokenizer_rules()))
    def test_every_rule_compiles_and_loses_no_text(self, name: str) -> None:
        rule = pre_tokenizer_rules()[name]
        text = "It's 12345 words\n\n  ÁÉ東京カナ가나 ½ <sentinel:1> f(x)=[1,2]; ΑΒ Ünïcode  "
        pieces = rule.build().pre_tokenize_str(text)
        spans = [span for _, span in pieces]
        assert spans[0][0] == 0
        assert all(left[1] == right[0] for left, right in itertools.pairwise(spans))
        assert spans[-1][1] == len(text)

    @pytest.mark.parametrize(
        ("name", "text", "pieces"),
        [
            ("gpt-2", "it's 1234  x", ["it", "'s", " 1234", " ", " x"]),
            ("smollm", "a1234", ["a", "1", "2", "3", "4"]),
            ("llama-bpe", "IT'S 1234!\n\n", ["IT", "'S", " ", "123", "4", "!\n\n"]),
            ("qwen2", "x=1234\n", ["x", "=", "1", "2", "3", "4", "\n"]),
            ("tekken", "fooBar 12", ["foo", "Bar", " ", "1", "2"]),
            ("gpt-4o", "fooBar's 123456", ["foo", "Bar's", " ", "123", "456"]),
            ("deepseek-v3", "a1234東京b", ["a", "123", "4", "東京", "b"]),
            ("superbpe", "1234567", ["1", "234", "567"]),
            ("kimi-k2", "東京tower", ["東京", "tower"]),
        ],
    )
    def test_rules_split_as_their_families_do(self, name: str, text: str, pieces: list[str]) -> None:
        found = [text[start:end] for _, (start, end) in pre_tokenizer_rules()[name].build().pre_tokenize_str(text)]
        assert found == pieces


class TestOtherKinds:
    def test_sentencepiece_bpe_equals_sentencepiece(self, tmp_path: Path) -> None:
        model = _train(tmp_path, "bpe")
        count = model.get_piece_size()
        kinds = [3 if model.is_control(i) else 6 if model.is_byte(i) else 1 for i in range(count)]
        kinds[model.unk_id()] = 2
        tokenizer = load(tmp_path, {
            "model": (_STRING, "llama"),
            "tokens": (_ARRAY, _STRING, [model.id_to_piece(i) for i in range(count)]),
            "scores": (_ARRAY, _F32, [model.get_score(i) for i in range(count)]),
            "token_type": (_ARRAY, _I32, kinds),
        })  # fmt: skip
        for text in ("the river runs past", " the  mill ", "kůň 東京 😀", "a\nb\tc"):
            assert tokenizer.encode(text) == model.encode(text)
            assert tokenizer.decode(model.encode(text)) == text
        assert tokenizer.adds_bos
        assert tokenizer.encode("the", add_special=True)[0] == 1
        assert tokenizer.strips_first_space
        assert not tokenizer.constrainable
        assert tokenizer.token_bytes(tokenizer.token_id("<0xF0>") or -1) == b"\xf0"

    def test_gemma4_spells_unknown_characters_in_bytes(self, tmp_path: Path) -> None:
        tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "▁", "a", "b", "ab", "▁ab"]
        tokens += [f"<0x{value:02X}>" for value in range(256)]
        tokenizer = load(tmp_path, {
            "model": (_STRING, "gemma4"),
            "tokens": (_ARRAY, _STRING, tokens),
            "token_type": (_ARRAY, _I32, [3, 3, 3, 3, 1, 1, 1, 1, 1, *[6] * 256]),
            "merges": (_ARRAY, _STRING, ["a b", "▁ ab"]),
            "bos_token_id": (_U32, 2),
            "eos_token_id": (_U32, 1),
            "add_bos_token": (_BOOL, False),
        })  # fmt: skip
        assert tokenizer.encode("ab ab") == [7, 8]
        assert tokenizer.decode(tokenizer.encode("ab é\nab")) == "ab é\nab"
        assert tokenizer.encode("ab", add_special=True) == [2, 7], "this family always begins with its token"

    def test_wordpiece(self, tmp_path: Path) -> None:
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁river", "▁run", "s", "▁un"]
        tokenizer = load(tmp_path, {
            "model": (_STRING, "bert"),
            "tokens": (_ARRAY, _STRING, tokens),
            "token_type": (_ARRAY, _I32, [3, 3, 3, 3, 1, 1, 1, 1]),
            "unknown_token_id": (_U32, 1),
            "cls_token_id": (_U32, 2),
            "seperator_token_id": (_U32, 3),
            "padding_token_id": (_U32, 0),
        })  # fmt: skip
        assert tokenizer.encode("River RUNS", add_special=True) == [2, 4, 5, 6, 3]
        assert tokenizer.decode([4, 5, 6]) == "river runs"
        assert tokenizer.encode("zzz") == [1]

    def test_unigram(self, tmp_path: Path) -> None:
        model = _train(tmp_path, "unigram")
        count = model.get_piece_size()
        tokenizer = load(tmp_path, {
            "model": (_STRING, "t5"),
            "tokens": (_ARRAY, _STRING, [model.id_to_piece(i) for i in range(count)]),
            "scores": (_ARRAY, _F32, [model.get_score(i) for i in range(count)]),
            "token_type": (_ARRAY, _I32, [2 if i == 0 else 3 if i < 3 else 1 for i in range(count)]),
            "unknown_token_id": (_U32, 0),
            "eos_token_id": (_U32, 2),
            "remove_extra_whitespaces": (_BOOL, True),
        })  # fmt: skip
        for text in ("the river runs", "  the   mill "):
            assert tokenizer.encode(text) == model.encode(text)
        assert tokenizer.encode("the", add_special=True)[-1] == 2

    def test_a_kind_from_the_future_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(StartupError, match="'quantum' is not supported"):
            load(tmp_path, {"model": (_STRING, "quantum"), "tokens": (_ARRAY, _STRING, ["a"])})


def _train(folder: Path, kind: str) -> sentencepiece.SentencePieceProcessor:
    lines = ["the river runs past the old mill", "when the rain comes the wheel turns", "a b c d e f g h"] * 4
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(folder / "spm"), vocab_size=330 if kind == "bpe" else 60,
        model_type=kind, byte_fallback=kind == "bpe", minloglevel=5, hard_vocab_limit=False,
        remove_extra_whitespaces=kind != "bpe", normalization_rule_name="identity",
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))


_ONE_KEY = struct.pack("<IQQ", 3, 0, 1)


class TestDamagedFiles:
    def test_every_cut_of_a_file_is_one_line_for_the_terminal(self, tmp_path: Path) -> None:
        prefix = "tokenizer.ggml"
        whole = gguf_bytes({f"{prefix}.model": (_STRING, "gpt2"), f"{prefix}.tokens": (_ARRAY, _STRING, ["a", "bc"])})
        path = tmp_path / "cut.gguf"
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            with pytest.raises(StartupError) as caught:
                load_tokenizer(path)
            assert "\n" not in caught.value.message

    @pytest.mark.parametrize(
        ("body", "why"),
        [
            (struct.pack("<IQQ", 3, 0, 2**60), "key count"),
            (struct.pack("<IQQ", 9, 0, 1), "version 9"),
            (_ONE_KEY + _string("k") + struct.pack("<I", 99) + b"\0" * 30, "type 99"),
            (_ONE_KEY + struct.pack("<Q", 2**63) + b"\0" * 30, "ends"),
            (_ONE_KEY + _string("k") + struct.pack("<IIQ", _ARRAY, _STRING, 2**61) + b"\0" * 9, "longer"),
            (_ONE_KEY + _string("k") + struct.pack("<IIQ", _ARRAY, _U64, 2**61) + b"\0" * 9, "ends"),
            (_ONE_KEY + _string("k") + struct.pack("<I", _ARRAY) + struct.pack("<IQ", _ARRAY, 1) * 9, "nested"),
        ],
    )
    def test_hostile_lengths_allocate_nothing(self, tmp_path: Path, body: bytes, why: str) -> None:
        path = tmp_path / "hostile.gguf"
        path.write_bytes(b"GGUF" + body)
        with pytest.raises(StartupError, match=why):
            load_tokenizer(path)

    def test_missing_and_foreign_files(self, tmp_path: Path) -> None:
        with pytest.raises(StartupError, match="cannot be read"):
            load_tokenizer(tmp_path / "absent.gguf")
        (tmp_path / "empty.gguf").write_bytes(b"")
        with pytest.raises(StartupError, match="cannot be read"):
            load_tokenizer(tmp_path / "empty.gguf")
        (tmp_path / "zip.gguf").write_bytes(b"PK\x03\x04" * 20)
        with pytest.raises(StartupError, match="magic"):
            load_tokenizer(tmp_path / "zip.gguf")

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"merges": (_STRING, "x")}, "merge rules"),
            ({"token_type": (_ARRAY, _I32, [1])}, "shorter"),
            ({"tokens": (_ARRAY, _STRING, [])}, "no vocabulary"),
            ({"model": (_STRING, "llama")}, "scores"),
        ],
    )
    def test_inconsistent_vocabularies(self, tmp_path: Path, change: dict[str, tuple[Any, ...]], why: str) -> None:
        with pytest.raises(StartupError, match=why):
            load(tmp_path, byte_level_entries() | change)

    def test_special_ids_out_of_range_are_dropped(self, tmp_path: Path) -> None:
        entries = byte_level_entries() | {"bos_token_id": (_U32, 10**6), "add_bos_token": (_BOOL, True)}
        tokenizer = load(tmp_path, entries)
        assert tokenizer.bos_id is None
        assert tokenizer.encode("a", add_special=True) == tokenizer.encode("a")

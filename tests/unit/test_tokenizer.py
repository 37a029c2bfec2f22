"""Encoding and decoding: equal to the reference tokenizer, safe under hostile text, exact in bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from mlxcel.core.errors import StartupError
from mlxcel.testing.tiny_tokenizer import build_tiny_tokenizer, write_tiny_tokenizer
from mlxcel.text.tokenizer import Tokenizer, load_tokenizer

HARD_TEXTS = [
    "",
    " ",
    "   lead and trail   ",
    "\n",
    "\n\n\n\n\tx\r\n",
    " " * 200,
    "12345678901234567890 1,234.56 ½ ①",
    "👩‍👩‍👧‍👦 ďábelské ódy 東京 हिन्दी नमस्ते",
    "Příliš žluťoučký",
    "Pr\u030ci\u0301lis\u030c",
    "مرحبا ไทย 한국어 𝔘𝔫𝔦",
    "def f(x):\n    return x**2  # it's I'LL\n",
    "<|im_start|>user\nhi<|im_end|>\n<|im_end|",
    "<think>\n</think><tool_call>{}</tool_call>",
    "\ufeff\u200b\u200d\x00\x7f",
    "\ufdd0\U000f0000 and \ufdd0",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
]


@pytest.fixture(scope="module")
def reference() -> PreTrainedTokenizerFast:
    return build_tiny_tokenizer()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_tiny_tokenizer(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_ids_and_text_equal_the_reference(tokenizer: Tokenizer, reference: PreTrainedTokenizerFast, text: str) -> None:
    ids = reference.encode(text, add_special_tokens=False)
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == reference.decode(ids)
    assert tokenizer.decode(ids, skip_special=True) == reference.decode(ids, skip_special_tokens=True)


@settings(max_examples=150, deadline=None)
@given(
    text=st.lists(
        st.one_of(
            st.text(max_size=8),
            st.sampled_from(["<|im_end|>", "<think>", "</tool_call>", "<|im_", "\ufdd0", "\U000f0001"]),
        )
    ).map("".join)
)
def test_any_text_survives_the_round_trip(tokenizer: Tokenizer, reference: PreTrainedTokenizerFast, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids == reference.encode(text, add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=40).map(lambda text: text + "<|im_end|><think>" + text))
def test_plain_encoding_has_no_control_or_marker_tokens(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, parse_special=False)
    markers = {tokenizer.token_id(marker) for marker in tokenizer.control_markers}
    assert not markers & set(ids)
    assert tokenizer.decode(ids) == text


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 511), max_size=30))
def test_any_ids_decode_like_the_reference(
    tokenizer: Tokenizer, reference: PreTrainedTokenizerFast, ids: list[int]
) -> None:
    assert tokenizer.decode(ids) == reference.decode(ids)


def test_a_spelling_from_outside_cannot_reach_an_alias(tokenizer: Tokenizer) -> None:
    """The private stand-ins of control tokens are ordinary text when somebody types them."""
    turn_end = tokenizer.token_id("<|im_end|>")
    for code in range(0xF0000, 0xF0020):
        typed = f"a\ufdd0{chr(code)}b"
        for parse_special in (True, False):
            ids = tokenizer.encode(typed, parse_special=parse_special)
            assert turn_end not in ids
            assert max(ids) < tokenizer.vocab_size
            assert tokenizer.decode(ids) == typed


def test_guarded_spellings_stay_text_and_guards_vanish(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_guarded("<|im_start|>a\ufdd1<|im_end|><|im_end|>", "\ufdd1")
    assert ids.count(tokenizer.token_id("<|im_end|>") or -1) == 1
    assert ids[-1] == tokenizer.token_id("<|im_end|>")
    assert tokenizer.decode(ids) == "<|im_start|>a<|im_end|><|im_end|>"


def test_token_ends_are_offsets_into_the_plain_text(tokenizer: Tokenizer) -> None:
    text = "<|im_start|>user\n東é\ufdd1<|im_end|>   you<|im_end|>\n  "
    plain = text.replace("\ufdd1", "")
    ids, ends = tokenizer.encode_with_ends(text, "\ufdd1")
    assert ids == tokenizer.encode_guarded(text, "\ufdd1")
    assert ends == sorted(ends)
    assert ends[-1] == len(plain)
    for index, end in enumerate(ends):
        if index + 1 == len(ends) or ends[index + 1] > end:
            assert tokenizer.decode(ids[: index + 1]) == plain[:end]


def test_facts_about_the_vocabulary(tokenizer: Tokenizer) -> None:
    end = tokenizer.token_id("<|im_end|>")
    assert tokenizer.vocab_size == 512
    assert tokenizer.eos_ids == {end}
    assert end is not None
    assert tokenizer.is_special(end)
    assert tokenizer.pad_id == tokenizer.token_id("<|endoftext|>")
    assert tokenizer.bos_id is None
    assert not tokenizer.adds_bos
    assert tokenizer.byte_level
    assert tokenizer.constrainable
    assert tokenizer.special_tokens["eos_token"] == "<|im_end|>"
    assert tokenizer.chat_template is not None
    assert set(tokenizer.fim_ids) == {"prefix", "suffix", "middle"}
    assert tokenizer.token_id("no such piece") is None
    think = tokenizer.token_id("<think>")
    assert think is not None
    assert not tokenizer.is_special(think), "a marker the model shows"
    assert "<think>" in tokenizer.control_markers


@pytest.mark.parametrize("token_id", [-1, 512, 10**9])
def test_ids_outside_the_vocabulary_mean_nothing(tokenizer: Tokenizer, token_id: int) -> None:
    assert tokenizer.token_bytes(token_id) == b""
    assert tokenizer.piece(token_id) == ""


def test_every_token_has_its_exact_bytes(tokenizer: Tokenizer, reference: PreTrainedTokenizerFast) -> None:
    single_bytes = {tokenizer.token_bytes(token_id) for token_id in range(512)}
    assert {bytes([value]) for value in range(256)} <= single_bytes
    assert tokenizer.token_bytes(tokenizer.token_id("<think>") or -1) == b"<think>"


def test_threads_share_one_tokenizer(tokenizer: Tokenizer) -> None:
    """Parsing control tokens is a choice per call, so concurrent callers must not see each other's."""
    text = "<|im_start|>x<|im_end|>" * 20
    wanted = {flag: tokenizer.encode(text, parse_special=flag) for flag in (True, False)}
    with ThreadPoolExecutor(8) as pool:
        flags = [index % 2 == 0 for index in range(400)]
        results = list(pool.map(lambda flag: tokenizer.encode(text, parse_special=flag), flags))
    assert all(result == wanted[flag] for flag, result in zip(flags, results, strict=True))


def test_fingerprints_tell_tokenizers_apart(tmp_path: Path, tokenizer: Tokenizer) -> None:
    same = load_tokenizer(write_tiny_tokenizer(tmp_path / "same"))
    assert same.fingerprint == tokenizer.fingerprint
    other = write_tiny_tokenizer(tmp_path / "other")
    (other / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    assert load_tokenizer(other).fingerprint != tokenizer.fingerprint


class TestBeginningOfSequence:
    @pytest.fixture
    def with_bos(self, tmp_path: Path) -> Tokenizer:
        folder = write_tiny_tokenizer(tmp_path / "bos")
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config |= {"bos_token": "<|endoftext|>", "add_bos_token": True, "add_eos_token": False}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return load_tokenizer(folder)

    def test_it_is_added_on_request(self, with_bos: Tokenizer) -> None:
        bos = with_bos.bos_id
        assert with_bos.adds_bos
        assert with_bos.encode("hi", add_special=True) == [bos, *with_bos.encode("hi")]
        assert with_bos.encode("", add_special=True) == [bos]

    def test_it_is_never_doubled(self, with_bos: Tokenizer) -> None:
        ids = with_bos.encode("<|endoftext|>hi", add_special=True)
        assert ids.count(with_bos.bos_id or -1) == 1

    def test_its_spelling_as_plain_text_does_not_count(self, with_bos: Tokenizer) -> None:
        ids = with_bos.encode("<|endoftext|>hi", add_special=True, parse_special=False)
        assert ids[0] == with_bos.bos_id
        assert with_bos.bos_id not in ids[1:]


class TestFolders:
    def test_turn_ends_come_from_every_config(self, tmp_path: Path) -> None:
        folder = write_tiny_tokenizer(tmp_path)
        (folder / "config.json").write_text(json.dumps({"eos_token_id": 7}))
        own = load_tokenizer(folder).token_id("<|im_end|>")
        assert load_tokenizer(folder).eos_ids == {7, own}
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4, True, -1, "x"]}))
        assert load_tokenizer(folder).eos_ids == {3, 4, own}

    def test_turn_ends_of_a_nested_text_config(self, tmp_path: Path) -> None:
        folder = write_tiny_tokenizer(tmp_path)
        (folder / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": [9]}}))
        assert 9 in load_tokenizer(folder).eos_ids

    def test_templates_by_name_and_by_file(self, tmp_path: Path) -> None:
        folder = write_tiny_tokenizer(tmp_path)
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config["chat_template"] = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}, {"name": 1}]
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer = load_tokenizer(folder)
        assert (tokenizer.chat_template, tokenizer.named_templates) == ("A", {"tool_use": "B"})
        (folder / "chat_template.jinja").write_text("C")
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "rag.jinja").write_text("D")
        tokenizer = load_tokenizer(folder)
        assert (tokenizer.chat_template, tokenizer.named_templates) == ("C", {"tool_use": "B", "rag": "D"})

    def test_tokens_declared_only_in_the_config_are_added(self, tmp_path: Path) -> None:
        folder = write_tiny_tokenizer(tmp_path)
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config["added_tokens_decoder"] = {
            "512": {"content": "<|late|>", "special": True},
            "513": {"content": "<|later|>", "special": False},
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer = load_tokenizer(folder)
        assert tokenizer.vocab_size == 514
        assert tokenizer.encode("a<|later|><|late|>")[-2:] == [513, 512]

    def test_a_vocabulary_with_holes_keeps_its_ids(self, tmp_path: Path) -> None:
        folder = write_tiny_tokenizer(tmp_path)
        document = json.loads((folder / "tokenizer.json").read_text())
        vocabulary = document["model"]["vocab"]
        merged = next(piece for piece, token_id in vocabulary.items() if token_id == 499)
        vocabulary[merged] = 530
        (folder / "tokenizer.json").write_text(json.dumps(document))
        tokenizer = load_tokenizer(folder)
        assert tokenizer.vocab_size == 531
        assert tokenizer.token_bytes(520) == b""
        text = "<|im_start|>the quick <|im_end|>"
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert max(tokenizer.encode(text)) < 531

    @pytest.mark.parametrize("damage", [b"", b"{", b"{}", b'{"model": {"type": "BPE"}}', b"\xff\xfe"])
    def test_a_damaged_file_is_a_startup_error(self, tmp_path: Path, damage: bytes) -> None:
        (tmp_path / "tokenizer.json").write_bytes(damage)
        with pytest.raises(StartupError, match=r"tokenizer\.json"):
            load_tokenizer(tmp_path)

    def test_damaged_side_files_are_named(self, tmp_path: Path) -> None:
        folder = write_tiny_tokenizer(tmp_path)
        (folder / "generation_config.json").write_text("{")
        with pytest.raises(StartupError, match=r"generation_config\.json"):
            load_tokenizer(folder)

    def test_an_empty_folder_says_what_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(StartupError, match=r"expected tokenizer\.json"):
            load_tokenizer(tmp_path)


def test_the_text_path_starts_without_tensors() -> None:
    """Counting tokens or printing help must not wait a second for torch or transformers."""
    rooms = "tokenizer, hf_tokenizer, gguf_tokenizer, chat_template, constrain, detokenize, stop"
    code = f"from mlxcel.text import {rooms}; import sys; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"

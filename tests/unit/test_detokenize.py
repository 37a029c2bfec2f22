"""Incremental decoding: whatever the cut, the pieces join to the whole text."""

from __future__ import annotations

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.testing.tiny_tokenizer import write_tiny_tokenizer
from mlxcel.text.detokenize import Detokenizer
from mlxcel.text.tokenizer import Tokenizer, load_tokenizer

FAMILY = "👩‍👩‍👧‍👦 ďábelské 東京 हिन्दी"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_tiny_tokenizer(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def spaced(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A SentencePiece vocabulary that puts a space in front of a text."""
    folder = tmp_path_factory.mktemp("spaced")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the river runs past the old mill"] * 4), model_prefix=str(folder / "tokenizer"),
        vocab_size=290, model_type="bpe", byte_fallback=True, hard_vocab_limit=False, minloglevel=5,
        remove_extra_whitespaces=False, normalization_rule_name="identity",
    )  # fmt: skip
    return load_tokenizer(folder)


def byte_ids(tokenizer: Tokenizer, raw: bytes) -> list[int]:
    """One token a byte."""
    single = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    return [single[bytes([value])] for value in raw]


@settings(max_examples=200, deadline=None)
@given(
    ids=st.lists(st.integers(0, 511), max_size=40),
    cuts=st.lists(st.integers(1, 5), min_size=1, max_size=40),
    skip=st.booleans(),
)
def test_pieces_join_to_the_decoded_whole(tokenizer: Tokenizer, ids: list[int], cuts: list[int], skip: bool) -> None:
    detokenizer = Detokenizer(tokenizer, skip_special=skip)
    pieces = []
    position = 0
    for step in range(len(ids)):
        size = cuts[step % len(cuts)]
        pieces.append(detokenizer.push(ids[position : position + size]))
        position += size
    assert "".join(pieces) + detokenizer.flush() == tokenizer.decode(ids, skip_special=skip)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_a_character_over_many_tokens_appears_whole(tokenizer: Tokenizer, chunk: int) -> None:
    ids = byte_ids(tokenizer, FAMILY.encode())
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(ids[start : start + chunk]) for start in range(0, len(ids), chunk)]
    assert "".join(pieces) == FAMILY
    assert not any("�" in piece or any("\ud800" <= letter <= "\udfff" for letter in piece) for piece in pieces)
    assert detokenizer.flush() == ""


def test_each_token_gets_the_text_it_completes(tokenizer: Tokenizer) -> None:
    ids = byte_ids(tokenizer, "aé東".encode())
    assert Detokenizer(tokenizer).push_each(ids) == ["a", "", "é", "", "", "東"]


def test_invalid_bytes_are_replaced_and_the_text_goes_on(tokenizer: Tokenizer) -> None:
    ids = byte_ids(tokenizer, b"x\xf0\x9f a\xffb")
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(ids) == "x� a�b"
    assert detokenizer.flush() == ""


def test_an_unfinished_character_ends_as_one_replacement(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(byte_ids(tokenizer, b"ok\xe6\x9d")) == "ok"
    assert detokenizer.flush() == "�"


def test_control_tokens_are_skipped_or_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>a<think>b<|im_end|>")
    assert Detokenizer(tokenizer).push(ids) == "a<think>b"
    assert Detokenizer(tokenizer, skip_special=False).push(ids) == "<|im_start|>a<think>b<|im_end|>"


def test_a_skipped_token_inside_a_character_does_not_split_it(tokenizer: Tokenizer) -> None:
    first, second = byte_ids(tokenizer, "é".encode())
    end = tokenizer.token_id("<|im_end|>")
    assert end is not None
    assert Detokenizer(tokenizer).push([first, end, second]) == "é"


def test_ids_outside_the_vocabulary_add_nothing(tokenizer: Tokenizer) -> None:
    assert Detokenizer(tokenizer).push([*tokenizer.encode("a"), 512, 10**6, *tokenizer.encode("b")]) == "ab"


class TestSpaceInFront:
    def test_it_belongs_to_the_vocabulary_at_the_beginning_of_a_text(self, spaced: Tokenizer) -> None:
        ids = spaced.encode("the river")
        assert spaced.token_bytes(ids[0]) == b" the"
        assert spaced.decode(ids) == "the river"
        detokenizer = Detokenizer(spaced)
        assert "".join(detokenizer.push([token_id]) for token_id in ids) == "the river"

    def test_it_is_kept_where_a_text_is_continued(self, spaced: Tokenizer) -> None:
        ids = spaced.encode("the river")
        assert Detokenizer(spaced, continues_text=True).push(ids) == " the river"

    def test_only_one_is_dropped(self, spaced: Tokenizer) -> None:
        assert spaced.decode(spaced.encode("  the")) == "  the"

    def test_a_control_token_before_it_does_not_use_up_the_rule(self, spaced: Tokenizer) -> None:
        assert spaced.decode(spaced.encode("the", add_special=True), skip_special=True) == "the"

    def test_bytes_spell_unknown_characters(self, spaced: Tokenizer) -> None:
        assert spaced.decode(spaced.encode(FAMILY)) == FAMILY


def test_a_long_text_decodes_token_by_token(tokenizer: Tokenizer) -> None:
    """60,000 tokens would take minutes if each one decoded the text before it again."""
    detokenizer = Detokenizer(tokenizer)
    ids = tokenizer.encode("the river runs ") * 4000
    assert "".join(detokenizer.push([token_id]) for token_id in ids) == "the river runs " * 4000

"""Tokens to text, thinking and calls: the composition that every generating surface uses."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from mlxcel.core.chat import ToolSpec
from mlxcel.core.events import (
    FinishReason,
    PieceLogprob,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from mlxcel.text.output import OutputEnd, OutputParser, OutputPiece
from mlxcel.text.reasoning import REASONING_MARKERS, ReasoningSplitter
from mlxcel.text.stop import StopMatcher
from mlxcel.text.tool_formats import FORMATS, ToolStream

THINK = next(markers for markers in REASONING_MARKERS if markers.name == "think")
TOOLS = (ToolSpec("ping", parameters={"type": "object"}),)


class Pieces:
    """A vocabulary of whole strings: token ``i`` is ``texts[i]``, and the last one is shown by ``flush``."""

    def __init__(self, texts: Sequence[str], tail: str = "") -> None:
        self.texts = list(texts)
        self._tail = tail

    def push(self, ids: Sequence[int], /) -> str:
        return "".join(self.texts[token_id] for token_id in ids)

    def flush(self) -> str:
        return self._tail


def make(
    texts: Sequence[str],
    *,
    stop: Sequence[str] = (),
    think: bool = False,
    fmt: str | None = None,
    tail: str = "",
    **options: Any,
) -> OutputParser:
    return OutputParser(
        Pieces(texts, tail),
        StopMatcher(stop) if stop else None,
        reasoning=ReasoningSplitter(THINK, starts_inside=options.pop("inside", False)) if think else None,
        tools=ToolStream(FORMATS[fmt], TOOLS, parallel=options.pop("parallel", True)) if fmt else None,
        **options,
    )


def run(
    texts: Sequence[str], reason: FinishReason = FinishReason.EOS, *, logprobs: bool = False, **options: Any
) -> tuple[list[OutputPiece], OutputEnd]:
    parser = make(texts, **options)
    pieces: list[OutputPiece] = []
    for token_id in range(len(texts)):
        pieces += parser.push((token_id,), (entry(token_id),) if logprobs else ())
    end = parser.finish(reason)
    assert "".join(piece.text for piece in [*pieces, *end.pieces] if isinstance(piece, TextDelta)) == end.text
    assert "".join(piece.text for piece in [*pieces, *end.pieces] if isinstance(piece, ReasoningDelta)) == end.reasoning
    return [*pieces, *end.pieces], end


def entry(token_id: int) -> PieceLogprob:
    return PieceLogprob(token_id, f"t{token_id}", b"", -0.5)


CALL = ("<tool_call>", '{"name": "ping", ', '"arguments": {"a"', ": 1}}", "</tool_call>")


class TestText:
    def test_plain(self) -> None:
        pieces, end = run(["Hel", "lo", ""], tail="\ufffd")
        assert pieces == [TextDelta("Hel"), TextDelta("lo"), TextDelta("\ufffd")]
        assert end.text == "Hello\ufffd"
        assert end.reason is FinishReason.EOS
        assert end.token_ids == (0, 1, 2)

    def test_several_tokens_at_once_make_one_piece(self) -> None:
        parser = make(["a", "b", "c"])
        assert parser.push((0, 1, 2)) == [TextDelta("abc")]

    def test_token_ids_go_with_their_text(self) -> None:
        pieces, _ = run(["a", "", "b"], with_token_ids=True)
        assert pieces == [TextDelta("a", (), (0,)), TextDelta("", (), (1,)), TextDelta("b", (), (2,))]


class TestStops:
    def test_across_tokens_and_the_rest_is_dropped(self) -> None:
        parser = make(["one fo", "x two", " three"], stop=("own fox", "fox t"))
        assert parser.push((0, 1, 2)) == [TextDelta("one ")]
        assert parser.stopped == "fox t"
        assert parser.token_count == 2
        end = parser.finish(FinishReason.LENGTH)
        assert (end.text, end.reason, end.stop_string) == ("one ", FinishReason.STOP_STRING, "fox t")
        assert end.token_ids == (0, 1)

    def test_a_withheld_tail_that_is_no_stop_string_comes_at_the_end(self) -> None:
        pieces, end = run(["a fo"], stop=("fox",))
        assert pieces == [TextDelta("a "), TextDelta("fo")]
        assert end.stop_string is None

    def test_inside_thinking(self) -> None:
        _, end = run(["<think>", "hm STOP", " x"], stop=("STOP",), think=True)
        assert (end.reasoning, end.text, end.stop_string) == ("hm", "", "STOP")

    def test_inside_a_call(self) -> None:
        _, end = run(CALL, stop=("1}}",), fmt="hermes")
        assert [(call.name, call.arguments) for call in end.tool_calls] == [("ping", '{"a": ')]
        assert end.stop_string == "1}}"

    def test_a_failure_is_not_hidden_by_a_stop(self) -> None:
        _, end = run(["a STOP"], FinishReason.ERROR, stop=("STOP",))
        assert end.reason is FinishReason.ERROR


class TestThinking:
    TEXTS = ("<think>", "\n", "so", "\n", "</think>", "\n\n", "Hi")

    def test_apart(self) -> None:
        for reasoning_format in ("auto", "deepseek"):
            pieces, end = run(self.TEXTS, think=True, reasoning_format=reasoning_format)
            assert pieces == [ReasoningDelta("so"), TextDelta("Hi")]
            assert end.reasoning_tokens == 4  # newline, text, newline, closing delimiter

    def test_in_the_text(self) -> None:
        pieces, end = run(self.TEXTS, think=True, reasoning_format="none")
        assert end.text == "<think>\nso\n</think>\n\nHi"
        assert end.reasoning == ""
        assert not any(isinstance(piece, ReasoningDelta) for piece in pieces)

    def test_in_both_places(self) -> None:
        _, end = run(self.TEXTS, think=True, reasoning_format="deepseek-legacy")
        assert (end.text, end.reasoning) == ("<think>\nso\n</think>\n\nHi", "so")

    def test_a_block_that_the_prompt_opened(self) -> None:
        _, end = run(["so", "</think>", "Hi"], think=True, inside=True)
        assert (end.reasoning, end.text, end.reasoning_tokens) == ("so", "Hi", 2)
        _, end = run(["so", "</think>", "Hi"], think=True, inside=True, reasoning_format="none")
        assert end.text == "<think>so</think>Hi"

    def test_a_call_in_the_thoughts_is_a_thought(self) -> None:
        _, end = run(["<think>", *CALL, "</think>", *CALL], think=True, fmt="hermes")
        assert len(end.tool_calls) == 1
        assert "<tool_call>" in end.reasoning

    def test_channels(self) -> None:
        text = "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>Hi"
        _, end = run(list(text), fmt="harmony")
        assert (end.reasoning, end.text) == ("so", "Hi")
        assert end.reasoning_tokens == len("so<|end|>")
        _, end = run([text], fmt="harmony", reasoning_format="none")
        assert end.text == "<|channel|>analysis<|message|>so<|end|>Hi"


class TestCalls:
    def test_pieces_in_order(self) -> None:
        pieces, end = run(["Look: ", *CALL, "\n", *CALL], fmt="hermes")
        kinds = [type(piece) for piece in pieces]
        assert kinds[0] is TextDelta
        assert [piece.index for piece in pieces if isinstance(piece, ToolCallStarted)] == [0, 1]
        assert [(call.name, call.arguments) for call in end.tool_calls] == [("ping", '{"a": 1}')] * 2
        assert end.text == "Look:"
        assert end.reason is FinishReason.TOOL_CALLS

    def test_fragments_join_to_the_arguments(self) -> None:
        parser = make(CALL, fmt="hermes")
        pieces = parser.push(range(len(CALL)))
        assert [type(piece) for piece in pieces] == [ToolCallStarted, ToolCallDelta]
        assert isinstance(pieces[1], ToolCallDelta)
        assert pieces[1].fragment == '{"a": 1}'

    @pytest.mark.parametrize("reason", [FinishReason.EOS, FinishReason.LOOP, FinishReason.STOP_STRING])
    def test_the_reason_becomes_tool_calls(self, reason: FinishReason) -> None:
        assert run(CALL, reason, fmt="hermes")[1].reason is FinishReason.TOOL_CALLS

    def test_the_limit_stays_the_reason_when_it_cut_a_call_off(self) -> None:
        assert run(CALL, FinishReason.LENGTH, fmt="hermes")[1].reason is FinishReason.TOOL_CALLS
        _, end = run([*CALL, *CALL[:3]], FinishReason.LENGTH, fmt="hermes")
        assert end.reason is FinishReason.LENGTH
        assert end.tool_calls[1].arguments == '{"a"'
        assert "ended inside" in end.warnings[0]

    @pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.ERROR])
    def test_an_abnormal_end_stays_one(self, reason: FinishReason) -> None:
        assert run(CALL, reason, fmt="hermes")[1].reason is reason

    def test_one_call_at_most(self) -> None:
        assert len(run([*CALL, *CALL], fmt="hermes", parallel=False)[1].tool_calls) == 1

    def test_without_parsing_everything_is_text(self) -> None:
        texts = ["<think>", "x", "</think>", *CALL]
        _, end = run(texts)
        assert (end.text, end.tool_calls) == ("".join(texts), ())
        assert end.reason is FinishReason.EOS


class TestLogprobs:
    def check(self, texts: Sequence[str], **options: Any) -> list[OutputPiece]:
        pieces, end = run(texts, logprobs=True, **options)
        reported = [lp for piece in pieces if isinstance(piece, TextDelta | ReasoningDelta) for lp in piece.logprobs]
        assert [lp.token_id for lp in reported] == list(range(len(texts)))
        assert all(len(piece.logprobs) <= 1 for piece in pieces if isinstance(piece, TextDelta | ReasoningDelta))
        assert end.logprobs == tuple(reported)
        return pieces

    def test_suppressed_delimiters_keep_their_place(self) -> None:
        pieces = self.check(["Hi ", *CALL, "\n", *CALL, " ok"], fmt="hermes")
        assert pieces[0] == TextDelta("Hi", (entry(0),))
        assert pieces[1] == TextDelta("", (entry(1),))

    def test_withheld_text(self) -> None:
        pieces = self.check(["a", "<tool", "_x"], fmt="hermes")
        assert [piece.text for piece in pieces if isinstance(piece, TextDelta)] == ["a", "", "<tool_x"]

    def test_thinking(self) -> None:
        pieces = self.check(["<think>", "so", "</think>", "Hi"], think=True)
        assert [type(piece) for piece in pieces] == [TextDelta, ReasoningDelta, TextDelta, TextDelta]

    def test_thinking_in_both_places(self) -> None:
        self.check(["<think>", "so", "</think>", "Hi"], think=True, reasoning_format="deepseek-legacy")

    def test_half_a_character(self) -> None:
        self.check(["", "é"])


def test_plain_text_is_cheap() -> None:
    parser = make(["a", " word"], fmt="hermes", think=True)
    parser.push((0,))
    started_s = time.process_time()
    for _ in range(20_000):
        parser.push((1,))
    assert (time.process_time() - started_s) / 20_000 < 30e-6

"""Stop strings: found however the text is cut, shown never, and nothing more held back than could become one."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.text.stop import StopMatcher


def first_completed(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition, character by character: the first moment at which the text ends with a stop string."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if stop and text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = ""
    for piece in pieces:
        safe, matched = matcher.push(piece)
        shown += safe
        if matched is not None:
            return shown, matched
    return shown + matcher.flush(), None


_letters = st.text(alphabet="ab\né", max_size=12)


@settings(max_examples=500, deadline=None)
@given(pieces=st.lists(_letters, max_size=8), stops=st.lists(_letters, max_size=4))
def test_any_cut_gives_what_the_definition_says(pieces: list[str], stops: list[str]) -> None:
    assert run(stops, pieces) == first_completed("".join(pieces), stops)


@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(_letters, max_size=8), stops=st.lists(_letters, max_size=4))
def test_only_a_possible_beginning_is_held_back(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = read = ""
    for piece in pieces:
        safe, matched = matcher.push(piece)
        shown, read = shown + safe, read + piece
        if matched is not None:
            return
        held = read[len(shown) :]
        assert read.startswith(shown)
        assert held == "" or any(stop.startswith(held) for stop in stops)
        longest = max((n for stop in stops for n in range(1, len(stop)) if read.endswith(stop[:n])), default=0)
        assert len(held) == longest


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (["DEFGHIJ"], ["Here is the alphabet: ABC", "DEF", "GHI", "JKL"], ("Here is the alphabet: ABC", "DEFGHIJ")),
        (["own fox"], ["The quick br", "own f", "ox jumps"], ("The quick br", "own fox")),
        (["\n\n"], ["one\n", "two\n", "\nthree"], ("one\ntwo", "\n\n")),
        (["žluť", "ň"], ["příliš ž", "lu", "t kůn", "ň"], ("příliš žlut kůn", "ň")),
        (["👩‍👧"], ["a 👩", "\u200d", "👦 b 👩‍", "👧"], ("a 👩‍👦 b ", "👩‍👧")),
        (["", "x"], ["a", "", "bx"], ("ab", "x")),
        ([""], ["abc"], ("abc", None)),
        ([], ["abc"], ("abc", None)),
        (["abcd", "bc"], ["abcd"], ("a", "bc")),
        (["cd", "abcd"], ["abcd"], ("ab", "cd")),
        (["abcd", "cd"], ["abcd"], ("", "abcd")),
        (["aab"], ["aaaab"], ("aa", "aab")),
        (["</s>"], ["a </", "b> </s", ">"], ("a </b> ", "</s>")),
        (["stop"], ["sto"], ("sto", None)),
    ],
)
def test_cases(stops: list[str], pieces: list[str], expected: tuple[str, str | None]) -> None:
    assert run(stops, pieces) == expected
    text = "".join(pieces)
    assert run(stops, [text]) == expected
    assert run(stops, list(text)) == expected


def test_nothing_follows_a_match() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("ax and more") == ("a", "x")
    assert matcher.push("even more") == ("", "x")
    assert matcher.flush() == ""
    assert matcher.matched == "x"


def test_flush_gives_the_held_text_once() -> None:
    matcher = StopMatcher(["abc"])
    assert matcher.push("zab") == ("z", None)
    assert matcher.flush() == "ab"
    assert matcher.flush() == ""
    assert matcher.push("c") == ("c", None), "what was flushed no longer counts"


def test_the_cost_does_not_grow_with_the_number_of_stops() -> None:
    """A hundred near-misses of a thousand characters each would be hopeless for a search per stop string and character."""
    text = ("a" * 999 + "b") * 50
    stops = ["a" * 1000 + str(number) for number in range(100)]
    started = time.process_time()
    assert run(stops, [text]) == (text, None)
    assert time.process_time() - started < 2.0

"""Delimiters in text that comes in pieces."""

from __future__ import annotations

import pytest

from mlxcel.text.markers import MarkerScanner


def test_the_first_delimiter_wins_and_of_two_the_longer() -> None:
    scanner = MarkerScanner(["<a>", "<a>b", "x"])
    assert scanner.find("..<a>bx", final=True) == (2, "<a>b")


def test_a_head_waits_for_the_longer_delimiter_unless_the_text_has_ended() -> None:
    scanner = MarkerScanner(["<a>", "<a>b"])
    assert scanner.find("<a>") is None
    assert scanner.find("<a>", final=True) == (0, "<a>")


@pytest.mark.parametrize("seen", ["</TAG", "</TAGcal"])
def test_a_delimiter_inside_an_unfinished_longer_one_waits(seen: str) -> None:
    scanner = MarkerScanner(["TAG", "</TAGcalls>"])
    assert scanner.find(seen) is None
    assert scanner.held_chars(seen) == len(seen)
    assert scanner.find(seen, final=True) == (2, "TAG")
    assert scanner.find("</TAGcalls>") == (0, "</TAGcalls>")
    assert scanner.find("</TAGother") == (2, "TAG")

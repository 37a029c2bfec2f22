"""Thinking is told apart from the answer, however the text is cut."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.text.reasoning import (
    REASONING_MARKERS,
    ReasoningMarkers,
    ReasoningSplitter,
    detect_reasoning,
)

BY_NAME = {markers.name: markers for markers in REASONING_MARKERS}
THINK, GEMMA = BY_NAME["think"], BY_NAME["gemma4"]


def split(
    markers: ReasoningMarkers, chunks: Sequence[str], starts_inside: bool = False, ends: Sequence[str] = ()
) -> tuple[str, str, str]:
    """(thinking, answer, raw text of both)."""
    splitter = ReasoningSplitter(markers, starts_inside=starts_inside, implicit_ends=ends)
    segments = [segment for chunk in chunks for segment in splitter.push(chunk)] + splitter.finish()
    return (
        "".join(segment.text for segment in segments if segment.reasoning),
        "".join(segment.text for segment in segments if not segment.reasoning),
        "".join(segment.raw for segment in segments),
    )


@pytest.mark.parametrize(
    ("text", "starts_inside", "thinking", "answer"),
    [
        ("Hello", False, "", "Hello"),
        ("<think>\nhm\n</think>\n\nHello\n", False, "hm", "Hello\n"),
        ("<think></think>Hello", False, "", "Hello"),
        ("\n <think>hm</think> Hello", False, "hm", " Hello"),
        ("hm\n\n more \n</think>\nHello", True, "hm\n\n more", "Hello"),
        ("<think>\nhm</think>Hello", True, "hm", "Hello"),  # the model repeats what the prompt already opened
        ("hm, cut off \n", True, "hm, cut off", ""),
        ("<think>never closed </thin", False, "never closed </thin", ""),
        ("</think>\nHello", False, "", "Hello"),  # a stray close is dropped
        ("Oh</think>Hello", False, "", "OhHello"),
        ("<think>a</think>b </think> <think>c</think>", False, "a", "b </think> <think>c</think>"),  # text about tags
        ("Use <think> tags", False, "", "Use <think> tags"),
        ("  indented", False, "", "  indented"),
        ("<thin", False, "", "<thin"),
        ("a < b <", False, "", "a < b <"),
    ],
)
def test_think_blocks(text: str, starts_inside: bool, thinking: str, answer: str) -> None:
    for chunks in ([text], list(text), *([text[:cut], text[cut:]] for cut in range(1, len(text)))):
        assert split(THINK, chunks, starts_inside)[:2] == (thinking, answer)


@pytest.mark.parametrize("markers", REASONING_MARKERS, ids=lambda markers: markers.name)
def test_every_family(markers: ReasoningMarkers) -> None:
    text = f"{markers.open}{markers.label}\nhm{markers.close}\nHello"
    for chunks in ([text], list(text)):
        assert split(markers, chunks)[:2] == ("hm", "Hello")


def test_control_tokens_open_a_block_in_mid_answer() -> None:
    text = "One<|channel>thought\nhm<channel|>two"
    for chunks in ([text], list(text)):
        assert split(GEMMA, chunks) == ("hm", "Onetwo", text)


def test_a_section_of_calls_ends_the_block() -> None:
    text = "<think>so I call<|section|>{}"
    for chunks in ([text], list(text)):
        assert split(THINK, chunks, ends=("<|section|>",))[:2] == ("so I call", "<|section|>{}")


def test_the_raw_text_is_complete() -> None:
    text = "<think>\n hm \n</think>\n\nHello"
    assert split(THINK, list(text))[2] == text
    assert split(THINK, list("hm\n</think>\nHi"), starts_inside=True)[2] == "<think>hm\n</think>\nHi"


@settings(max_examples=200, deadline=None)
@given(
    fragments=st.lists(st.sampled_from(("<think>", "</think>", "<", "think>", "\n", " " * 300, "a", "</")), max_size=10),
    positions=st.lists(st.integers(0, 400), max_size=8),
    starts_inside=st.booleans(),
)
def test_cuts_do_not_matter(fragments: list[str], positions: list[int], starts_inside: bool) -> None:
    text = "".join(fragments)
    bounds = sorted({0, len(text), *(position % (len(text) + 1) for position in positions)})
    chunks = [text[start:end] for start, end in itertools.pairwise(bounds)]
    for markers in (THINK, GEMMA):
        whole = split(markers, [text], starts_inside)
        assert split(markers, chunks, starts_inside) == whole
        assert split(markers, list(text), starts_inside) == whole


@pytest.mark.parametrize("unit", [" ", "<", "<think>", "</think>", "\n<", "x"])
@pytest.mark.parametrize("starts_inside", [True, False])
def test_the_work_is_linear(unit: str, starts_inside: bool) -> None:
    splitter = ReasoningSplitter(THINK, starts_inside=starts_inside)
    started_s = time.process_time()
    for char in unit * (60_000 // len(unit)):
        splitter.push(char)
    splitter.finish()
    assert time.process_time() - started_s < 2.0


def test_detection() -> None:
    def none_of_them(text: str) -> None:
        return None

    assert detect_reasoning("{{ content.split('</think>')[-1] }}", none_of_them) == THINK
    assert detect_reasoning("[THINK]x[/THINK]", none_of_them) == BY_NAME["magistral"]
    assert detect_reasoning("</seed:think>", none_of_them) == BY_NAME["seed"]
    assert detect_reasoning("<|channel>thought<channel|>", none_of_them) == GEMMA
    assert detect_reasoning("", {"<think>": 1, "</think>": 2}.get) == THINK
    assert detect_reasoning("", {"<think>": 1}.get) is None
    assert detect_reasoning("", {"<|channel>": 1, "<channel|>": 2}.get) == GEMMA
    assert detect_reasoning("{{ messages }}", none_of_them) is None


def test_a_label_is_markup_only_where_it_belongs() -> None:
    for chunks_of in (lambda text: [text], list):
        assert split(GEMMA, chunks_of("<|channel>th<channel|>Hi"))[:2] == ("th", "Hi")
        assert split(GEMMA, chunks_of("<|channel>thought\nthought<channel|>Hi"))[:2] == ("thought", "Hi")
        assert split(GEMMA, chunks_of("<|channel>thought"))[:2] == ("", "")

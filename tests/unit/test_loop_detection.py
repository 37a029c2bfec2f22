"""Loop detection: the detector against a literal definition, the environment variable, and who has the last word."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.core.sampling import LoopDetection
from mlxcel.engine.loop_detection import DEFAULT_LOOP_DETECTION, LoopDetector, parse_loop_policy, resolve_loop_policy


def ends_in_loop(tokens: list[int], shortest: int, longest: int, count: int) -> bool:
    return any(
        len(tokens) >= length * count and tokens[-length * count :] == tokens[-length:] * count
        for length in range(shortest, longest + 1)
    )


@given(
    st.lists(st.integers(0, 2), max_size=60),
    st.integers(1, 6),
    st.integers(1, 8),
    st.integers(2, 5),
)
@settings(max_examples=300, deadline=None)
def test_detector_equals_its_definition(tokens: list[int], shortest: int, longest: int, count: int) -> None:
    detector = LoopDetector(LoopDetection(longest, shortest, count))
    shortest = min(shortest, longest)
    for end, token in enumerate(tokens, 1):
        assert detector.push(token) == ends_in_loop(tokens[:end], shortest, longest, count)


def test_detector_fires_on_the_token_that_completes_the_last_repeat() -> None:
    detector = LoopDetector(DEFAULT_LOOP_DETECTION)
    pattern = list(range(20))
    fired = [detector.push(token) for token in [99, *pattern * 4]]
    assert fired == [False] * 80 + [True]


@pytest.mark.parametrize("settings_", [LoopDetection(0), LoopDetection(20, 1, 1), LoopDetection(20, 1, 0)])
def test_disabled_detector_never_fires(settings_: LoopDetection) -> None:
    detector = LoopDetector(settings_)
    assert not any(detector.push(7) for _ in range(100))


def test_minimum_of_zero_means_one() -> None:
    detector = LoopDetector(LoopDetection(5, 0, 3))
    assert [detector.push(1) for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize("value", ["off", "0", "none", "FALSE", " disabled "])
def test_off_words(value: str) -> None:
    policy = parse_loop_policy(value)
    assert policy is not None
    assert not policy.enabled


@pytest.mark.parametrize("value", ["on", "default", "True", "enabled\n"])
def test_on_words(value: str) -> None:
    assert parse_loop_policy(value) == DEFAULT_LOOP_DETECTION == LoopDetection(20, 1, 4)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2,30,5", LoopDetection(30, 2, 5)),
        ("2:30:5", LoopDetection(30, 2, 5)),
        (" 0 , 8 , 3 ", LoopDetection(8, 1, 3)),
        ("9,4,3", LoopDetection(4, 4, 3)),
        ("1,20,1", LoopDetection(20, 1, 1)),
    ],
)
def test_numbers(value: str, expected: LoopDetection) -> None:
    assert parse_loop_policy(value) == expected


@pytest.mark.parametrize(
    "value", ["yes", "1,2", "1,2,3,4", "1,2:3", "-1,2,3", "1,2,x", "1.5,2,3", "٣,٣,٣", "1" * 30 + ",2,3"]
)
def test_malformed_values_are_ignored_aloud(value: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert parse_loop_policy(value) is None
    assert "MLXCEL_LOOP_DETECTION" in caplog.text


def test_an_unset_variable_is_no_setting(caplog: pytest.LogCaptureFixture) -> None:
    assert parse_loop_policy("  ") is None
    assert not caplog.records


def test_precedence() -> None:
    request, operator = LoopDetection(5, 1, 3), LoopDetection(9, 1, 6)
    off = LoopDetection(0)
    assert resolve_loop_policy(request, operator, "gemma4") == request
    assert resolve_loop_policy(None, operator, "gemma4") == operator
    assert resolve_loop_policy(None, None, "gemma4_text") == DEFAULT_LOOP_DETECTION
    assert resolve_loop_policy(None, None, "qwen3") is None
    assert resolve_loop_policy(off, operator, "gemma4") is None
    assert resolve_loop_policy(None, off, "gemma4") is None
    assert resolve_loop_policy(None, operator, "llama") == operator

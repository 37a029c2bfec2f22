"""Every format on golden texts: whole, character by character, and cut at every byte."""

from __future__ import annotations

import codecs
import gc
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mlxcel.core.chat import ToolSpec
from mlxcel.core.events import TextDelta, ToolCallDelta, ToolCallStarted
from mlxcel.text.reasoning import Segment
from mlxcel.text.tool_formats import FORMATS, ToolStream, detect_format, format_by_name, parse_output

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "tool_formats.json").read_text(encoding="utf-8"))
TOOLS = (
    ToolSpec(
        "get_weather",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "on": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "opts": {"type": "object"},
                "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "either": {"type": ["string", "integer"]},
                "note": {"type": "string"},
            },
        },
    ),
    ToolSpec("ping", parameters={"type": "object", "properties": {}}),
)
# The formats that must send names and arguments while they are generated.
INCREMENTAL = {"hermes", "qwen3_coder", "mistral", "mistral_nemo", "llama3_json"}
Outcome = dict[str, Any]


def fold(stream: ToolStream, chunks: Sequence[str]) -> Outcome:
    """What a client assembles from the streamed pieces."""
    pieces = [piece for chunk in chunks for piece in stream.push(chunk)] + stream.finish()
    calls: list[list[str]] = []
    for piece in pieces:
        if isinstance(piece, ToolCallStarted):
            assert piece.index == len(calls)
            calls.append([piece.name, ""])
        elif isinstance(piece, ToolCallDelta):
            assert piece.fragment
            calls[piece.index][1] += piece.fragment
    assert calls == [[call.name, call.arguments] for call in stream.calls]
    assert len({call.id for call in stream.calls}) == len(calls)
    return {
        "content": "".join(piece.text for piece in pieces if isinstance(piece, TextDelta)),
        "reasoning": "".join(piece.text for piece in pieces if isinstance(piece, Segment)),
        "calls": calls,
        "cut_off": stream.cut_off,
    }


def byte_chunks(text: str, cut: int) -> list[str]:
    """What an incremental decoder makes of the text's bytes cut in two."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    raw = text.encode()
    return [decoder.decode(raw[:cut]), decoder.decode(raw[cut:], final=True)]


def read(name: str, chunks: Sequence[str], **options: Any) -> Outcome:
    return fold(ToolStream(FORMATS[name], TOOLS, **options), chunks)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['format']}: {case['name']}")
def test_golden(case: Outcome) -> None:
    expected = {key: case[key] for key in ("content", "reasoning", "calls", "cut_off")}
    text = case["text"]
    assert read(case["format"], [text]) == expected
    assert read(case["format"], list(text)) == expected
    for cut in range(1, len(text.encode())):
        assert read(case["format"], byte_chunks(text, cut)) == expected


def test_every_format_has_golden_texts() -> None:
    assert {case["format"] for case in GOLDEN} == set(FORMATS)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['format']}: {case['name']}")
def test_calls_stream_as_documented(case: Outcome) -> None:
    stream = ToolStream(FORMATS[case["format"]], TOOLS)
    pieces = [piece for char in case["text"] for piece in stream.push(char)] + stream.finish()
    deltas = [piece for piece in pieces if isinstance(piece, ToolCallDelta)]
    if case["format"] not in INCREMENTAL:
        assert len(deltas) == len(case["calls"])
    elif case["name"] in ("typed by the schema", "bracketed", "json list", "two calls", "two calls after prose"):
        assert len(deltas) > 5 * len(case["calls"])


def test_the_name_is_sent_before_the_arguments_are_complete() -> None:
    stream = ToolStream(FORMATS["hermes"], TOOLS)
    pieces = stream.push('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par')
    assert isinstance(pieces[0], ToolCallStarted)
    assert pieces[0].name == "get_weather"
    assert isinstance(pieces[1], ToolCallDelta)
    assert pieces[1].fragment == '{"city": "Par'


def test_parallel_calls_can_be_refused() -> None:
    text = "".join(f'<tool_call>{{"name": "ping", "arguments": {{"n": {index}}}}}</tool_call>' for index in range(3))
    for chunks in ([text], list(text)):
        assert read("hermes", chunks, parallel=False)["calls"] == [["ping", '{"n": 0}']]
    assert len(read("hermes", [text])["calls"]) == 3


class TestIds:
    def test_ids_are_unique_and_of_the_usual_form(self) -> None:
        text = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>' * 200
        ids = [call.id for call in parse_output(FORMATS["hermes"], text, TOOLS).calls]
        assert len(set(ids)) == 200
        assert all(call_id.startswith("call_") for call_id in ids)

    def test_kimi_keeps_its_own_unless_it_repeats_itself(self) -> None:
        call = "<|tool_call_begin|>functions.ping:3<|tool_call_argument_begin|>{}<|tool_call_end|>"
        first, second = parse_output(FORMATS["kimi_k2"], call * 2, TOOLS).calls
        assert first.id == "functions.ping:3"
        assert second.id.startswith("call_")

    def test_mistral_wants_nine_letters_and_digits(self) -> None:
        text = "[TOOL_CALLS]ping[ARGS]{}[TOOL_CALLS]ping[CALL_ID]a1B2c3D4e[ARGS]{}[TOOL_CALLS]ping[CALL_ID]x-1[ARGS]{}"
        ids = [call.id for call in parse_output(FORMATS["mistral"], text, TOOLS).calls]
        assert ids[1] == "a1B2c3D4e"
        assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids)


class TestWarnings:
    def test_an_unknown_format_is_said_aloud(self) -> None:
        assert "no known tool-call format" in parse_output(FORMATS["generic"], "Hi", TOOLS).warnings[0]
        assert parse_output(FORMATS["generic"], "Hi", ()).warnings == ()

    def test_faults_are_said_once(self) -> None:
        parsed = parse_output(FORMATS["hermes"], "<tool_call>x</tool_call>" * 3 + '<tool_call>{"name', TOOLS)
        assert len(parsed.warnings) == 2
        assert "malformed" in parsed.warnings[0]
        assert "ended inside" in parsed.warnings[1]


def test_without_tools_a_call_is_text_but_frames_go() -> None:
    text = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    assert parse_output(FORMATS["hermes"], text, ()).content == text
    assert parse_output(FORMATS["command_r"], "<|START_RESPONSE|>Hi<|END_RESPONSE|>", ()).content == "Hi"
    harmony = "<|channel|>commentary to=functions.ping<|message|>{}<|call|>"
    assert parse_output(FORMATS["harmony"], harmony, ()).content == "{}"


def test_calls_beyond_a_run_of_false_starts_are_still_read() -> None:
    fences = "```\ncode\n```\n" * 400
    text = fences + '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    parsed = parse_output(FORMATS["hermes"], text, TOOLS)
    assert [call.name for call in parsed.calls] == ["ping"]
    assert parsed.content == fences.rstrip()


HOSTILE = ("[", '{"', '{"a":', "(", '"', "\\", "<", " ", "\n", "\n\t", "a=", "-", "'")


def hostile_texts(name: str, size: int) -> Iterator[str]:
    """Delimiters without end, and each with a bracket, quote or blank repeated after it."""
    golden = [case["text"] for case in GOLDEN if case["format"] == name]
    for marker in sorted(FORMATS[name].marker_texts):
        yield marker * (size // len(marker))
        for tail in HOSTILE:
            yield marker + tail * (size // len(tail))
    for text in golden[:4]:
        head = text[: len(text) * 2 // 3]
        yield head * (size // len(head))
        for tail in HOSTILE[:6]:
            yield head + tail * (size // len(tail))


@contextmanager
def at_most(limit_s: float, what: str = "") -> Iterator[None]:
    """Limit the CPU time of this thread; a collection of all that earlier tests left behind is not part of it."""
    gc.disable()
    started_s = time.thread_time()
    try:
        yield
        assert time.thread_time() - started_s < limit_s, what
    finally:
        gc.enable()


@pytest.mark.parametrize("name", FORMATS)
def test_the_work_is_linear_in_the_text(name: str) -> None:
    size = 100_000  # a tenth of the 1 MB that must take well under a second
    for text in hostile_texts(name, size):
        with at_most(0.5, text[:60]):
            parse_output(FORMATS[name], text, TOOLS)


@pytest.mark.parametrize("name", FORMATS)
def test_the_work_is_linear_in_many_small_pieces(name: str) -> None:
    golden = next(case["text"] for case in GOLDEN if case["format"] == name)
    text = golden[: len(golden) // 2] + '"x' * 40_000
    stream = ToolStream(FORMATS[name], TOOLS)
    with at_most(1.0):
        for start in range(0, len(text), 4):
            stream.push(text[start : start + 4])
        stream.finish()


class TestDetection:
    @staticmethod
    def none_of_them(text: str) -> int | None:
        return None

    @pytest.mark.parametrize(
        ("template", "name"),
        [
            ("{{ '<tool_call>' }}", "hermes"),
            ("<tool_call>\n<function=example>\n<parameter=a>", "qwen3_coder"),
            ("<tool_call>{name}<arg_key>k</arg_key>", "glm"),
            ("{{ '[TOOL_CALLS][' }}", "mistral_nemo"),
            ("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}", "mistral"),
            ('respond {"name": f, "parameters": {}} <|python_tag|>', "llama3_json"),
            ('respond {"name": f, "parameters": {}}', "llama3_json"),
            ("<|start|>assistant<|channel|>final<|message|>", "harmony"),
            ("<minimax:tool_call>", "minimax_m2"),
            ("]<]minimax[>[<tool_call>", "minimax_m3"),
            ("<|tool_call>call:", "gemma4"),
            ("<start_function_call>call:", "function_gemma"),
            ("<|tool_calls_section_begin|><|tool_call_argument_begin|>", "kimi_k2"),
            (">>>all\n", "functionary_v3.2"),
            ("<function=example_name>{", "functionary_v3.1"),
            ("<|START_ACTION|>", "command_r"),
            ("<|start_of_role|> respond with <|tool_call|>", "granite"),
            ("<|tool_call_start|>[", "pythonic"),
            ("<longcat_tool_call>", "longcat"),
            ("<atem:function_calls>", "atem"),
            ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "deepseek"),
            ("{% set dsml_token = '｜DSML｜' %}", "deepseek_v3.2"),
            ("{{ messages }}", "generic"),
            ("", "generic"),
        ],
    )
    def test_by_template(self, template: str, name: str) -> None:
        assert detect_format(template, self.none_of_them).name == name

    def test_by_architecture_then_vocabulary(self) -> None:
        assert detect_format("", self.none_of_them, "gpt_oss").name == "harmony"
        assert detect_format("", {"[TOOL_CALLS]": 5}.get, None).name == "mistral_nemo"
        assert detect_format("{{ '<tool_call>' }}", {"[TOOL_CALLS]": 5}.get, "gpt_oss").name == "hermes"

    def test_by_name(self) -> None:
        assert all(format_by_name(name).name == name for name in FORMATS)
        with pytest.raises(KeyError):
            format_by_name("nonsense")

    def test_the_json_groups_can_be_forced(self) -> None:
        shapes = {name for name, fmt in FORMATS.items() if fmt.shape}
        assert shapes == {"hermes", "mistral_nemo", "llama3_json", "generic"}

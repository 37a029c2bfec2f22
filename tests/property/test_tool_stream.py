"""Calls survive any cut of the text, and arguments come back as they were written."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.core.chat import ToolSpec
from mlxcel.core.events import TextDelta, ToolCallDelta, ToolCallStarted
from mlxcel.text.reasoning import Segment
from mlxcel.text.tool_formats import FORMATS, ToolStream

TEXT = st.text(st.one_of(st.sampled_from('<>/{}[]()"\'\\|:=, \n\t`'), st.characters(codec="utf-8")), max_size=24)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.floats(allow_nan=False, allow_infinity=False), TEXT
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)
NAMES = st.sampled_from(("alpha", "beta"))
KEYS = ("first", "second", "third")
TOOLS = tuple(
    ToolSpec(name, parameters={"type": "object", "properties": {key: {"type": "string"} for key in KEYS}})
    for name in ("alpha", "beta")
)
UNTYPED = tuple(ToolSpec(name, parameters={}) for name in ("alpha", "beta"))
Calls = list[tuple[str, dict[str, Any]]]


def cut(text: str, positions: Sequence[int]) -> list[str]:
    bounds = [0, *sorted(position % (len(text) + 1) for position in positions), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


def run(name: str, chunks: Sequence[str], tools: Sequence[ToolSpec]) -> tuple[str, str, list[tuple[str, str]], bool]:
    """Content, reasoning, calls assembled from the stream as a client would, and whether the output was cut off."""
    stream = ToolStream(FORMATS[name], tools)
    pieces = [piece for chunk in chunks if chunk for piece in stream.push(chunk)] + stream.finish()
    names: list[str] = []
    arguments: list[str] = []
    for piece in pieces:
        if isinstance(piece, ToolCallStarted):
            assert piece.index == len(names)
            names.append(piece.name)
            arguments.append("")
        elif isinstance(piece, ToolCallDelta):
            assert piece.index == len(names) - 1
            arguments[piece.index] += piece.fragment
    assert [(call.name, call.arguments) for call in stream.calls] == list(zip(names, arguments, strict=True))
    assert len({call.id for call in stream.calls}) == len(names)
    content = "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Segment))
    return content, reasoning, list(zip(names, arguments, strict=True)), stream.cut_off


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def json_object(key: str) -> Callable[[str, str], str]:
    return lambda name, arguments: f'{{"name": "{name}", "{key}": {arguments}}}'


# How each family that carries JSON writes calls, given (name, JSON text of the arguments).
JSON_RENDERERS: dict[str, Callable[[list[tuple[str, str]]], str]] = {
    "hermes": lambda calls: "\n".join(
        f"<tool_call>\n{json_object('arguments')(*call)}\n</tool_call>" for call in calls
    ),
    "mistral_nemo": lambda calls: f"[TOOL_CALLS][{', '.join(json_object('arguments')(*call) for call in calls)}]",
    "mistral": lambda calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in calls),
    "llama3_json": lambda calls: "; ".join(json_object("parameters")(*call) for call in calls),
    "generic": lambda calls: "\n".join(f"```json\n{json_object('arguments')(*call)}\n```" for call in calls),
    "functionary_v3.1": lambda calls: "".join(f"<function={name}>{arguments}</function>" for name, arguments in calls),
    "functionary_v3.2": lambda calls: ">>>".join(f"{name}\n{arguments}" for name, arguments in calls),
    "granite": lambda calls: f"<|tool_call|>[{', '.join(json_object('arguments')(*call) for call in calls)}]",
    "command_r": lambda calls: "<|START_ACTION|>[\n{}\n]<|END_ACTION|>".format(
        ",\n".join(f'{{"tool_call_id": "0", "tool_name": "{name}", "parameters": {text}}}' for name, text in calls)
    ),
    "kimi_k2": lambda calls: "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>".format(
        "".join(
            f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{text}<|tool_call_end|>"
            for index, (name, text) in enumerate(calls)
        )
    ),
    "deepseek": lambda calls: "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>".format(
        "\n".join(f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{text}<｜tool▁call▁end｜>" for name, text in calls)
    ),
    "harmony": lambda calls: "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{text}<|call|>" for name, text in calls
    ),
}


def tagged(opening: str, key: str, value_end: str, closing: str, around: str = "") -> Callable[[str, dict[str, str]], str]:
    def render(name: str, arguments: dict[str, str]) -> str:
        body = "".join(f"{key.format(k)}{around}{v}{around}{value_end}" for k, v in arguments.items())
        return opening.format(name) + body + closing

    return render


M3 = "]<]minimax[>["
# How each family that carries text writes one call whose parameters are all strings.
TEXT_RENDERERS: dict[str, Callable[[str, dict[str, str]], str]] = {
    "qwen3_coder": tagged(
        "<tool_call>\n<function={}>\n", "<parameter={}>", "</parameter>\n", "</function>\n</tool_call>", "\n"
    ),
    "minimax_m2": tagged('<invoke name="{}">\n', '<parameter name="{}">', "</parameter>\n", "</invoke>"),
    "deepseek_v3.2": tagged(
        '<｜DSML｜invoke name="{}">\n',
        '<｜DSML｜parameter name="{}" string="true">',
        "</｜DSML｜parameter>\n",
        "</｜DSML｜invoke>",
    ),
    "glm": tagged("<tool_call>{}\n", "<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>\n", "</tool_call>"),
    "longcat": tagged(
        "<longcat_tool_call>{}\n",
        "<longcat_arg_key>{}</longcat_arg_key>\n<longcat_arg_value>",
        "</longcat_arg_value>\n",
        "</longcat_tool_call>",
    ),
    "atem": tagged(
        ' to=x<|message|><atem:function_calls>\n<atem:invoke name="{}">\n',
        '<atem:parameter name="{}">',
        "</atem:parameter>\n",
        "</atem:invoke>\n</atem:function_calls>",
    ),
    "gemma4": lambda name, arguments: "<|tool_call>call:{}{{{}}}<tool_call|>".format(
        name, ",".join(f'{key}:<|"|>{value}<|"|>' for key, value in arguments.items())
    ),
    "function_gemma": lambda name, arguments: "<start_function_call>call:{}{{{}}}<end_function_call>".format(
        name, ",".join(f"{key}:<escape>{value}<escape>" for key, value in arguments.items())
    ),
    "minimax_m3": lambda name, arguments: '{0}<tool_call>\n{0}<invoke name="{1}">{2}{0}</invoke>\n{0}</tool_call>'.format(
        M3, name, "".join(f"{M3}<{key}>{value}{M3}</{key}>" for key, value in arguments.items())
    ),
}
CUTS = st.lists(st.integers(0, 10_000), max_size=12)


@pytest.mark.parametrize("name", JSON_RENDERERS)
@settings(max_examples=40, deadline=None)
@given(calls=st.lists(st.tuples(NAMES, st.dictionaries(TEXT, VALUES, max_size=3)), min_size=1, max_size=3), positions=CUTS)
def test_json_arguments_come_back_byte_for_byte(name: str, calls: Calls, positions: list[int]) -> None:
    written = [(function, dump(arguments)) for function, arguments in calls]
    text = JSON_RENDERERS[name](written)
    content, _, found, cut_off = run(name, cut(text, positions), TOOLS)
    assert found == written
    assert (content, cut_off) == ("", False)
    assert run(name, list(text), TOOLS) == (content, "", found, cut_off)


@pytest.mark.parametrize("name", TEXT_RENDERERS)
@settings(max_examples=40, deadline=None)
@given(function=NAMES, arguments=st.dictionaries(st.sampled_from(KEYS), TEXT), positions=CUTS)
def test_text_arguments_keep_every_character(
    name: str, function: str, arguments: dict[str, str], positions: list[int]
) -> None:
    text = TEXT_RENDERERS[name](function, arguments)
    content, _, found, cut_off = run(name, cut(text, positions), TOOLS)
    assert [(called, json.loads(written)) for called, written in found] == [(function, arguments)]
    assert (content, cut_off) == ("", False)
    assert run(name, list(text), TOOLS) == (content, "", found, cut_off)


@settings(max_examples=150, deadline=None)
@given(function=NAMES, arguments=st.dictionaries(st.sampled_from(KEYS), VALUES), positions=CUTS)
def test_python_literals_come_back_as_json(function: str, arguments: dict[str, Any], positions: list[int]) -> None:
    text = "<|tool_call_start|>[{}({})]<|tool_call_end|>".format(
        function, ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    )
    _, _, found, cut_off = run("pythonic", cut(text, positions), UNTYPED)
    assert [(called, json.loads(written)) for called, written in found] == [(function, arguments)]
    assert not cut_off


PARTS = (
    *('{"name": "alpha", "arguments": {', '"first": "x', '"}', "}", "{", "[", "]", '<|"|>', "=", ">", ":", "\n", " "),
    *("alpha", "alpha\n", 'alpha">', "beta(first='x'", "first", "to=functions.alpha", "functions.alpha:0", "```json\n", "x"),
)
FRAGMENTS = st.sampled_from((*sorted({marker for fmt in FORMATS.values() for marker in fmt.marker_texts}), *PARTS))


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(fragments=st.lists(FRAGMENTS, max_size=14), positions=CUTS)
def test_any_text_reads_the_same_however_it_is_cut(name: str, fragments: list[str], positions: list[int]) -> None:
    text = "".join(fragments)
    whole = run(name, [text], TOOLS)
    assert run(name, cut(text, positions), TOOLS) == whole
    assert run(name, list(text), TOOLS) == whole


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25, deadline=None)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="<[{`>|"), max_size=60), positions=CUTS)
def test_plain_text_is_passed_on(name: str, text: str, positions: list[int]) -> None:
    content, _, calls, _ = run(name, cut(text, positions), TOOLS)
    assert content == text
    assert not calls

"""Request parsing: every fault is told with its field, and no input value comes back."""

from __future__ import annotations

import pytest

from mlxcel.core.errors import InvalidRequest
from mlxcel.wire.openai.chat import ChatRequest
from mlxcel.wire.parse import MAX_DEPTH, field_path, load_json, parse_body

MESSAGE = b'"messages":[{"role":"user","content":"hi"}]'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"[]",
        b'"text"',
        b"null",
        b"{",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xff"}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b"}",
    ],
)
def test_what_is_not_a_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        load_json(body)


def test_deep_documents_are_accepted_up_to_the_limit() -> None:
    depth = MAX_DEPTH - 1
    assert load_json(b'{"a":' + b"[" * depth + b"]" * depth + b"}")


def test_wide_documents_are_not_deep() -> None:
    assert load_json(b'{"a":[' + b",".join([b"[[]]"] * 2000) + b"]}")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (b'"messages":"hi"', "messages"),
        (b'"messages":[1]', "messages[0]"),
        (b'"messages":[null]', "messages[0]"),
        (b'"messages":[{"content":"hi"}]', "messages[0].role"),
        (b'"messages":[{"role":"wizard","content":"hi"}]', "messages[0].role"),
        (b'"messages":[{"role":"user","content":7}]', "messages[0].content"),
        (b'"messages":[{"role":"user","content":[7]}]', "messages[0].content[0]"),
        (b'"messages":[{"role":"user","content":[{"type":"poem"}]}]', "messages[0].content[0]"),
        (b'"messages":[{"role":"user","content":[{"type":"text","text":null}]}]', "messages[0].content[0].text"),
        (b'"messages":[{"role":"assistant","content":null,"tool_calls":["x"]}]', "messages[0].tool_calls[0]"),
        (MESSAGE + b',"temperature":"0.5"', "temperature"),
        (MESSAGE + b',"temperature":true', "temperature"),
        (MESSAGE + b',"temperature":-1', "temperature"),
        (MESSAGE + b',"top_p":1.5', "top_p"),
        (MESSAGE + b',"typical_p":0', "typical_p"),
        (MESSAGE + b',"top_n_sigma":-1', "top_n_sigma"),
        (MESSAGE + b',"xtc_probability":1.1', "xtc_probability"),
        (MESSAGE + b',"xtc_threshold":0.6', "xtc_threshold"),
        (MESSAGE + b',"max_tokens":99999999999999999999999', "max_tokens"),
        (MESSAGE + b',"max_tokens":1.5', "max_tokens"),
        (MESSAGE + b',"stop":[1]', "stop[0]"),
        (MESSAGE + b',"stream":"yes"', "stream"),
        (MESSAGE + b',"tools":[null]', "tools[0]"),
        (MESSAGE + b',"tools":[{"type":"function"}]', "tools[0].function"),
        (MESSAGE + b',"top_logprobs":21,"logprobs":true', "top_logprobs"),
        (MESSAGE + b',"chat_template_kwargs":[]', "chat_template_kwargs"),
    ],
)
def test_a_fault_names_its_field(fields: bytes, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_body(ChatRequest, b"{" + fields + b"}")
    assert caught.value.param == param
    assert param in caught.value.message


def test_messages_never_repeat_the_value_sent() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_body(ChatRequest, b'{"messages":[{"role":"user","content":{"secret":"hunter2"}}]}')
    assert "hunter2" not in caught.value.message


def test_unknown_fields_and_nulls_are_accepted() -> None:
    request = parse_body(
        ChatRequest, b"{" + MESSAGE + b',"nonsense":1,"temperature":null,"stream_options":null,"tools":null,"stop":null}'
    )
    assert request.temperature is None
    assert not request.include_usage


def test_union_labels_are_no_part_of_a_path() -> None:
    assert field_path(("messages", 3, "content", "‹parts›", 0, "‹text›", "text")) == "messages[3].content[0].text"

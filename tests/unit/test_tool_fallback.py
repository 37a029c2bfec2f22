"""Tools written into the conversation of a template that knows none."""

from __future__ import annotations

import json

from mlxcel.core.chat import Message, TextPart, ToolCall, ToolSpec
from mlxcel.text.tool_fallback import write_out_tools

TOOLS = (ToolSpec("get_weather", "Weather of a city", {"type": "object", "properties": {"city": {"type": "string"}}}),)
USER = Message("user", (TextPart("Weather in Paris?"),))


def test_declarations_go_onto_the_system_message_else_the_last_user_message() -> None:
    system = Message("system", (TextPart("Be brief."),))
    with_system = write_out_tools((system, USER), TOOLS)
    assert with_system[0].text.startswith("Be brief.\n\n")
    assert json.loads(with_system[0].text.splitlines()[-1])["name"] == "get_weather"
    assert with_system[1] == USER
    without = write_out_tools((USER,), TOOLS)
    assert "get_weather" in without[0].text


def test_without_tools_a_plain_conversation_stays_as_it_is() -> None:
    assert write_out_tools((USER,), ()) == (USER,)


def test_earlier_calls_and_results_become_text() -> None:
    call = Message("assistant", tool_calls=(ToolCall("call_1", "get_weather", '{"city": "Paris"}'),))
    result = Message("tool", (TextPart("sunny"),), tool_call_id="call_1")
    _, told, answered = write_out_tools((USER, call, result), ())
    assert told.tool_calls == ()
    assert told.text == '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    assert answered.role == "user"
    assert answered.text == "<tool_response>\nsunny\n</tool_response>"


def test_a_call_without_arguments_is_still_json() -> None:
    call = Message("assistant", (TextPart("Now."),), tool_calls=(ToolCall("call_1", "now", ""),))
    (told,) = write_out_tools((call,), ())
    assert json.loads(told.text.split("\n")[2]) == {"name": "now", "arguments": {}}

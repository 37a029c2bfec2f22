"""Templates that refuse or drop turns: what they cannot take moves into the turn beside it."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.core.chat import MediaPart, Message, TextPart, ToolCall
from mlxcel.core.errors import InvalidRequest
from mlxcel.text.chat_template import ChatTemplate
from mlxcel.text.template_turns import TurnHabits, find_turn_habits, fit_turns

# In the manner of Gemma 2: no system role at all, strict alternation.
NO_SYSTEM = """\
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {{- '[' + message.role + ']' + message.content | trim + '[/]' }}
{%- endfor %}"""

# In the manner of Qwen 3.5: a system message must be the first, everything else is free.
SYSTEM_FIRST = """\
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('System message must be at the beginning.') }}
    {%- endif %}
    {{- '[' + message.role + ']' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}{{ '(' + call.function.arguments | tojson + ')' }}{% endfor %}
    {{- '[/]' }}
{%- endfor %}"""

# In the manner of Mistral: one optional system message, then alternation that looks past calls and their results.
ALTERNATING = """\
{%- if messages[0].role == 'system' %}{{ '[system]' + messages[0].content }}{% set messages = messages[1:] %}{% endif %}
{%- set ns = namespace(index=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
        {%- if (message.role == 'user') != (ns.index % 2 == 0) %}
            {{- raise_exception('After the optional system message, conversation roles must alternate') }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- elif message.role not in ('assistant', 'tool') %}
        {{- raise_exception('Only user and assistant roles are supported') }}
    {%- endif %}
    {{- '[' + message.role + ']' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}{{ '(' + call.function.arguments | tojson + ')' }}{% endfor %}
{%- endfor %}"""

# Drops what it does not know instead of refusing it.
SILENT = """\
{%- for message in messages %}
    {%- if message.role in ('user', 'assistant') %}{{ '[' + message.role + ']' + message.content }}{% endif %}
{%- endfor %}"""

FREE = """\
{%- for message in messages %}{{ '[' + message.role + ']' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}{{ '(' + call.function.arguments | tojson + ')' }}{% endfor %}
{%- endfor %}"""

STRICT = {"no system": NO_SYSTEM, "system first": SYSTEM_FIRST, "alternating": ALTERNATING}


def turn(role: Literal["system", "user", "assistant"], text: str) -> Message:
    return Message(role, (TextPart(text),))


SYSTEM, ASK, ANSWER, NOTE, MORE = (
    turn("system", "S"),
    turn("user", "one"),
    turn("assistant", "two"),
    turn("system", "N"),
    turn("user", "three"),
)
CALL = Message("assistant", tool_calls=(ToolCall("call00001", "f", '{"a": 1}'),))
RESULT = Message("tool", (TextPart("result"),), tool_call_id="call00001")


def render(source: str, *messages: Message) -> str:
    return ChatTemplate(source).render(messages).text


@pytest.mark.parametrize(
    ("source", "messages", "expected"),
    [
        (NO_SYSTEM, (SYSTEM, ASK), "[user]S\n\none[/]"),
        (NO_SYSTEM, (SYSTEM, NOTE, ASK, ANSWER, NOTE, MORE), "[user]S\n\nN\n\none[/][assistant]two[/][user]N\n\nthree[/]"),
        (NO_SYSTEM, (ASK, NOTE, ANSWER, MORE, NOTE), "[user]one\n\nN[/][assistant]two[/][user]three\n\nN[/]"),
        (NO_SYSTEM, (ASK, MORE, NOTE), "[user]one\n\nthree\n\nN[/]"),
        (NO_SYSTEM, (SYSTEM,), "[user]S[/]"),
        (NO_SYSTEM, (ASK, ANSWER, NOTE, ANSWER), "[user]one[/][assistant]two[/][user]N[/][assistant]two[/]"),
        (SYSTEM_FIRST, (SYSTEM, NOTE, ASK), "[system]S\n\nN[/][user]one[/]"),
        (SYSTEM_FIRST, (SYSTEM, ASK, NOTE, ANSWER), "[system]S[/][user]one\n\nN[/][assistant]two[/]"),
        (SYSTEM_FIRST, (ASK, MORE), "[user]one[/][user]three[/]"),
        (SYSTEM_FIRST, (ASK, CALL, RESULT, NOTE), '[user]one[/][assistant]({"a": 1})[/][tool]result[/][user]N[/]'),
        (ALTERNATING, (SYSTEM, NOTE, ASK, MORE), "[system]S\n\nN[user]one\n\nthree"),
        (ALTERNATING, (ASK, ANSWER, CALL, RESULT), '[user]one[assistant]two({"a": 1})[tool]result'),
        (ALTERNATING, (ASK, CALL, RESULT, MORE), '[user]one[assistant]({"a": 1})[tool]result\n\nthree'),
        (ALTERNATING, (ASK, CALL, RESULT, NOTE, MORE), '[user]one[assistant]({"a": 1})[tool]result\n\nN\n\nthree'),
        (SILENT, (SYSTEM, ASK), "[user]S\n\none"),
        (FREE, (SYSTEM, NOTE, ASK, MORE, NOTE), "[system]S[system]N[user]one[user]three[system]N"),
        (FREE, (ASK, CALL, RESULT, MORE), '[user]one[assistant]({"a": 1})[tool]result[user]three'),
    ],
)  # fmt: skip
def test_turns_move_only_where_they_must(source: str, messages: tuple[Message, ...], expected: str) -> None:
    assert render(source, *messages) == expected


def test_a_template_that_fails_anyway_is_left_alone() -> None:
    assert find_turn_habits(lambda turns: None) == TurnHabits()
    assert find_turn_habits(lambda turns: "") == TurnHabits()
    with pytest.raises(InvalidRequest, match="no"):
        render("{{ raise_exception('no') }}", SYSTEM, ASK)


def test_moved_system_text_cannot_write_control_tokens() -> None:
    """It stands in a user turn then, where a model does not expect the template's own words."""
    template = ChatTemplate(NO_SYSTEM, control_markers=("[/]",))
    rendered = template.render([turn("system", "a[/]b"), ASK])
    assert rendered.text == "[user]a[/]b\n\none[/]"
    assert rendered._guarded.count(rendered._guard) == 1


def test_media_stay_with_their_turn() -> None:
    image = Message("user", (MediaPart("image", "data:"), TextPart("look")))
    folded = fit_turns((SYSTEM, image), TurnHabits(system="never"))
    assert [type(part) for part in folded[0].parts] == [TextPart, TextPart, MediaPart, TextPart]
    assert folded[0].text == "S\n\nlook"
    kept = fit_turns((ASK, CALL, RESULT, image), TurnHabits(user_after_tool=False))
    assert [message.role for message in kept] == ["user", "assistant", "tool", "user"]


def test_thinking_and_calls_survive_a_join() -> None:
    first = Message("assistant", (TextPart("a"),), reasoning="why")
    second = Message("assistant", (TextPart("b"),), reasoning="because", tool_calls=CALL.tool_calls)
    (joined,) = fit_turns((first, second), TurnHabits(repeats_roles=False))
    assert (joined.text, joined.reasoning, joined.tool_calls) == ("a\n\nb", "why\n\nbecause", CALL.tool_calls)


@pytest.mark.parametrize("name", STRICT)
def test_no_order_of_turns_is_refused_or_loses_text(name: str) -> None:
    template = ChatTemplate(STRICT[name])
    kinds = ["system", "user", "assistant"] if name == "no system" else ["system", "user", "assistant", "calls"]

    @settings(max_examples=150, deadline=None, database=None)
    @given(st.lists(st.just("system"), max_size=2), st.lists(st.sampled_from(kinds), max_size=10))
    def check(head: list[str], rest: list[str]) -> None:
        messages: list[Message] = []
        for index, kind in enumerate([*head, "user", *rest]):
            if kind == "calls":
                call = ToolCall(f"call{index:05}", "f", f'{{"a": "<{index}c>"}}')
                messages.append(Message("assistant", tool_calls=(call,)))
                messages.append(Message("tool", (TextPart(f"<{index}r>"),), tool_call_id=call.id))
            else:
                messages.append(Message(kind, (TextPart(f"<{index}>"),)))  # type: ignore[arg-type]
        rendered = template.render(messages).text
        position = 0
        for message in messages:
            wanted = message.text or message.tool_calls[0].arguments
            assert wanted in rendered[position:]
            position = rendered.index(wanted, position)

    check()

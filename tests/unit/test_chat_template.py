"""Chat templates: the dialect, what templates are given, and what they may not do."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from mlxcel.core.chat import MediaPart, Message, TextPart, ToolCall, ToolSpec
from mlxcel.core.errors import InvalidRequest, StartupError
from mlxcel.text.chat_template import ChatTemplate
from mlxcel.text.template_environment import RenderLimits
from mlxcel.text.template_messages import parse_arguments, place_instruction, remove_think_blocks

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

# In the manner of reasoning models: old thinking is dropped, the switch closes an empty block.
THINKING = """\
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' and ns.last == messages|length - 1 %}{%- set ns.last = loop.revindex0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content, thought = message.content or '', message.reasoning_content %}
        {%- if not thought and '</think>' in content %}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip() %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '[A]' }}{% if thought %}{{ '<think>' + thought + '</think>' }}{% endif %}{{ content + '[/A]' }}
    {%- else %}
        {{- '[' + message.role + ']' + message.content + '[/]' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '[A]' }}
    {{- '<think></think>' if enable_thinking is defined and enable_thinking is false else '<think>\\n' }}
{%- endif %}"""

TOOLS = """\
{%- if tools %}{{ '[TOOLS]' + tools | tojson + '[/TOOLS]' }}{%- endif %}
{%- for message in messages %}
    {%- if message.tool_calls is defined and message.tool_calls is not none %}
        {%- for call in message.tool_calls %}
            {{- '[CALL]' + call.function.name + call.function.arguments | tojson + '[/CALL]' }}
        {%- endfor %}
    {%- elif message.role == 'tool' %}
        {{- '[RESULT ' + message.name + ']' + message.content + '[/RESULT]' }}
    {%- else %}
        {{- '[' + message.role + ']' + message.content }}
    {%- endif %}
{%- endfor %}"""

ASK = Message("user", (TextPart("hello"),))
_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = ToolSpec("get_weather", "Say <b>how</b> & when it's é", _PARAMETERS)


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def assistant(text: str, **fields: Any) -> Message:
    return Message("assistant", (TextPart(text),), **fields)


def render(source: str, *messages: Message, **options: Any) -> str:
    return ChatTemplate(source).render(messages or (ASK,), **options).text


class TestDialect:
    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            ("{% if true %}\n  a\n{% endif %}\nb", "  a\nb"),
            ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
            ("{% for i in range(4) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "023"),
            ("a{% generation %}b{{ 1 }}{% endgeneration %}c", "ab1c"),
            ("{{ {'a': '<é&\\'>', 'b': [1, none, true, 1.5]} | tojson }}", '{"a": "<é&\'>", "b": [1, null, true, 1.5]}'),
            ("{{ {'b': 1, 'a': 2} | tojson(indent=2) }}", '{\n  "b": 1,\n  "a": 2\n}'),
            ("{{ ['é'] | tojson(ensure_ascii=True) }}", '["\\u00e9"]'),
            ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
            ("{{ range(3) | map('string') | tojson }}", '["0", "1", "2"]'),
            ("{{ '  x '.strip() + 'a,b'.split(',')[1] + 'Q'.lower() + 'ab'.replace('a', 'c') }}", "xbqcb"),
            ("{{ 'abc'.startswith('ab') }}{{ 'abc'[::-1] }}{{ {'k': 1}.get('x', 7) }}{{ {'k': 1}.items() | list }}",
             "Truecba7[('k', 1)]"),
            ("{{ messages[0].nothing is none }}{{ messages[0].nothing is defined }}{{ messages[0].get('nothing') }}",
             "TrueFalseNone"),
            ("{% set ns = namespace(n=0) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "6"),
            ("{% set x = [] %}{% for i in range(3) %}{{ x.append(i) or '' }}{% endfor %}{{ x }}", "[0, 1, 2]"),
            ("{{ tools is defined }}{{ tools is none }}", "FalseTrue"),
            ("{{ '%02d' % 7 }}{{ 'ab' * 3 }}{{ 2 ** 5 }}{{ dict(a=1) }}", "07ababab32{'a': 1}"),
        ],
    )  # fmt: skip
    def test_it_is_that_of_hugging_face(self, source: str, expected: str) -> None:
        assert render(source) == expected

    def test_the_date_can_be_asked_for(self) -> None:
        assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")

    def test_special_tokens_are_variables(self) -> None:
        names = {"bos_token": "<s>", "eos_token": "</s>"}
        template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", names)
        assert template.render([ASK]).text == "<s>hello</s>"

    def test_a_broken_template_stops_the_start(self) -> None:
        with pytest.raises(StartupError, match="line 2"):
            ChatTemplate("a\n{% for %}")
        with pytest.raises(StartupError, match="nested"):
            ChatTemplate("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}")


class TestRefusals:
    def test_the_template_s_own_message_reaches_the_client(self) -> None:
        with pytest.raises(InvalidRequest, match="roles must alternate"):
            render("{{ raise_exception('roles must alternate') }}")

    def test_it_is_made_printable_and_short(self) -> None:
        with pytest.raises(InvalidRequest) as caught:
            render("{{ raise_exception('a\\n\\x1b[31m' + 'é' * 3000) }}")
        assert len(caught.value.message) <= 512
        assert caught.value.message.isprintable()

    @pytest.mark.parametrize("expression", ["1 / 0", "missing.attribute", "'a' + 1", "messages[9].content"])
    def test_any_failure_is_a_bad_request_without_details(self, expression: str) -> None:
        with pytest.raises(InvalidRequest, match="cannot render this conversation"):
            render("{{ " + expression + " }}")

    @pytest.mark.parametrize(
        "source",
        [
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            "{{ cycler.__init__.__globals__ }}",
            "{{ lipsum }}{{ lipsum.__globals__ }}",
            "{{ self.__init__.__globals__ }}",
            "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
            "{{ namespace(_x=1) }}",
            "{{ messages[0].update({'a': 1}) }}{{ messages[0].pop('role') }}",
            "{% include '/etc/passwd' %}",
        ],
    )
    def test_the_sandbox_holds(self, source: str) -> None:
        with pytest.raises(InvalidRequest):
            render(source)

    @pytest.mark.parametrize("name", ["messages.__class__", "'{0.__class__}'.format(1)", "range.__self__"])
    def test_python_s_own_attributes_are_undefined(self, name: str) -> None:
        assert render("{{ (" + name + ") or '' }}") == ""

    @pytest.mark.parametrize(
        "source",
        [
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
            "{{ 'x' * 999999999 }}",
            "{{ [0] * 999999999 }}",
            "{{ 9 ** 99999999 }}",
            "{{ range(99999999) | list }}",
            "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
            "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        ],
    )
    def test_endless_work_ends(self, source: str) -> None:
        started = time.process_time()
        template = ChatTemplate(source, limits=RenderLimits(output_chars=10**6, operations=10**5, seconds=0.5))
        with pytest.raises(InvalidRequest):
            template.render([ASK])
        assert time.process_time() - started < 5

    def test_there_must_be_a_message(self) -> None:
        with pytest.raises(InvalidRequest, match="must not be empty"):
            ChatTemplate(CHATML).render([])


class TestVariables:
    @pytest.mark.parametrize(
        "name",
        ["tokenize", "chat_template", "add_generation_prompt", "continue_final_message", "return_tensors", "return_dict",
         "messages", "tools", "_private", "raise_exception", "bos_token", "range"],
    )  # fmt: skip
    def test_reserved_names_are_refused(self, name: str) -> None:
        template = ChatTemplate(CHATML, {"bos_token": "<s>"})
        with pytest.raises(InvalidRequest, match=f"must not set '{name}'"):
            template.render([ASK], kwargs={name: True})

    def test_unknown_names_reach_the_template(self) -> None:
        assert render("{{ brand_new.key }}", kwargs={"brand_new": {"key": 3}}) == "3"

    def test_enable_thinking_is_mirrored_where_a_template_reads_thinking(self) -> None:
        source = "{{ thinking }}"
        assert render(source, kwargs={"enable_thinking": False}) == "False"
        assert render(source, kwargs={"enable_thinking": False, "thinking": True}) == "True"

    def test_templates_tell_what_they_read(self) -> None:
        template = ChatTemplate(THINKING)
        assert template.reads("enable_thinking")
        assert not template.reads("reasoning_effort")


class TestTools:
    def test_the_variable_is_undefined_without_tools(self) -> None:
        assert render("{{ tools is defined }}") == "False"
        assert render("{{ tools is defined }}", tools=()) == "False"

    def test_declarations_are_plain_json(self) -> None:
        text = render(TOOLS, tools=(WEATHER,))
        declared = json.loads(text.split("[TOOLS]")[1].split("[/TOOLS]")[0])
        function = {"name": "get_weather", "description": WEATHER.description, "parameters": dict(WEATHER.parameters)}
        assert declared == [{"type": "function", "function": function}]
        assert "<b>how</b> & when it's é" in text

    def test_support_is_found_out(self) -> None:
        assert ChatTemplate(TOOLS).supports_tools
        assert not ChatTemplate(CHATML).supports_tools

    @pytest.mark.parametrize(
        ("arguments", "value"),
        [('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}), ("", {}), ("  \n", {}), ("null", {}), (" null ", {}),
         ("[1]", "[1]"), ("3", "3"), ('"x"', '"x"'), ('{"a": ', '{"a": '), ("{" * 100_000, "{" * 100_000), ("NaN", "NaN")],
    )  # fmt: skip
    def test_arguments_become_objects_where_they_are_objects(self, arguments: str, value: object) -> None:
        assert parse_arguments(arguments) == value

    def test_a_tool_only_turn_and_its_result(self) -> None:
        call = ToolCall("id1", "get_weather", '{"city": "Brno"}')
        result = Message("tool", (TextPart("12°"),), tool_call_id="id1")
        text = render(TOOLS, ASK, Message("assistant", tool_calls=(call,)), result)
        assert '[CALL]get_weather{"city": "Brno"}[/CALL][RESULT get_weather]12°[/RESULT]' in text

    def test_missing_content_is_none_only_where_the_template_can_take_it(self) -> None:
        call = ToolCall("i", "f", '{"probe_key": 1}')
        turns = (ASK, Message("assistant", tool_calls=(call,)))
        calls = "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
        takes_none = "{% for m in messages %}{% if m.content is none %}(none)" + calls + "{% endif %}{% endfor %}"
        needs_text = "{% for m in messages %}{{ 'x' + m.content }}" + calls + "{% endfor %}"
        assert render(takes_none, *turns) == '(none){"probe_key": 1}'
        assert render(needs_text, *turns) == 'xhellox{"probe_key": 1}'

    def test_arguments_stay_text_for_templates_that_concatenate_them(self) -> None:
        calls = "{% for c in m.tool_calls or [] %}{{ '>' + c.function.arguments }}{% endfor %}"
        source = "{% for m in messages %}" + calls + "{% endfor %}"
        call = ToolCall("i", "f", '{"city":   "Brno"}')
        assert render(source, ASK, Message("assistant", tool_calls=(call,))) == '>{"city":   "Brno"}'


class TestThinking:
    TURNS = (user("q1"), assistant("<think>\nold\n</think>\n\na1"), user("q2"), assistant("<think>new</think>a2"))

    def test_old_thinking_is_dropped_by_default(self) -> None:
        text = render(THINKING, *self.TURNS, Message("tool", (TextPart("r"),)))
        assert "old" not in text
        assert "<think>new</think>a2" in text, "the chain of calls after the last question keeps its thinking"

    def test_it_can_be_kept(self) -> None:
        text = render(THINKING, *self.TURNS, user("q3"), kwargs={"preserve_thinking": True})
        assert "old" in text
        assert "new" in text

    def test_thinking_sent_back_apart_is_given_to_the_template(self) -> None:
        turns = (user("q"), assistant("a", reasoning="because"), Message("tool", (TextPart("r"),)))
        assert "<think>because</think>a" in render(THINKING, *turns)
        assert render("{{ messages[1].thinking }}", *turns) == "because"
        assert render("{{ messages[1]['reasoning'] }}", *turns) == "because"
        assert render("{{ messages[1].get('reasoning_content') }}", *turns) == "because"
        assert "because" not in render(THINKING, *turns, user("next"))

    @pytest.mark.parametrize(
        ("text", "expected"),
        [("a", "a"), ("<think>x</think>\n\na", "a"), ("x</think>a", "a"), ("b<think>x</think> a", "ba"),
         ("<think>x</think>a<think>y</think>b", "ab"), ("<think>open", "<think>open"), ("", "")],
    )  # fmt: skip
    def test_blocks_are_removed(self, text: str, expected: str) -> None:
        assert remove_think_blocks(text) == expected

    def test_removal_is_linear(self) -> None:
        started = time.process_time()
        remove_think_blocks("<think>" * 200_000)
        remove_think_blocks("</think>" * 200_000)
        assert time.process_time() - started < 2

    def test_whether_the_answer_begins_inside_a_block(self) -> None:
        template = ChatTemplate(THINKING)
        assert template.opens_reasoning()
        assert not template.opens_reasoning({"enable_thinking": False})
        assert not ChatTemplate(CHATML).opens_reasoning()
        asked = template.render([user("what does <think> do?")], kwargs={"enable_thinking": False})
        assert not asked.ends_inside("<think>", "</think>")

    def test_a_continued_turn_may_be_inside_a_block(self) -> None:
        template = ChatTemplate(CHATML)
        opened = template.render([ASK, assistant("<think>so far")], continue_final=True)
        assert opened.ends_inside("<think>", "</think>")
        closed = template.render([ASK, assistant("<think>so</think>far")], continue_final=True)
        assert not closed.ends_inside("<think>", "</think>")


class TestContinuedTurns:
    def test_the_turn_is_left_open(self) -> None:
        text = render(CHATML, ASK, assistant("The answer is "), continue_final=True)
        assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nThe answer is "

    def test_without_a_final_assistant_turn_nothing_changes(self) -> None:
        assert render(CHATML, ASK, continue_final=True) == render(CHATML, ASK)

    def test_without_the_switch_the_turn_is_closed(self) -> None:
        assert render(CHATML, ASK, assistant("x")).endswith("x<|im_end|>\n<|im_start|>assistant\n")

    def test_a_template_that_hides_the_final_turn_is_named(self) -> None:
        hides = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
        with pytest.raises(InvalidRequest, match="cannot continue an assistant message"):
            render(hides, ASK, assistant("x"), continue_final=True)

    def test_calls_cannot_be_continued(self) -> None:
        turn = Message("assistant", (TextPart("x"),), tool_calls=(ToolCall("i", "f", "{}"),))
        with pytest.raises(InvalidRequest, match="tool_calls cannot be continued"):
            render(CHATML, ASK, turn, continue_final=True)

    def test_a_template_that_splits_content(self) -> None:
        text = render(THINKING, ASK, assistant("<think>t</think>so far"), continue_final=True)
        assert text.endswith("[A]<think>t</think>so far")


class TestFallback:
    def test_a_plain_transcript(self) -> None:
        template = ChatTemplate(None)
        assert template.is_fallback
        turns = [Message("system", (TextPart("Be brief."),)), user("Hi"), assistant("Yes?"), user("Why?")]
        assert template.render(turns).text == "Be brief.\nUser: Hi\nAssistant: Yes?\nUser: Why?\nAssistant:"
        assert not ChatTemplate(CHATML).is_fallback


class TestMedia:
    PARTS = "{% for p in messages[0].content %}{{ p.text if p.type == 'text' else '<' + p.type + '>' }}{% endfor %}"

    def test_parts_in_order(self) -> None:
        parts = (TextPart("a"), MediaPart("image", "data:"), TextPart("b"), TextPart("c"), MediaPart("audio", "x"))
        assert render(self.PARTS, Message("user", parts)) == "a<image>bc<audio>"

    def test_plain_text_goes_as_the_template_wants_it(self) -> None:
        assert render(self.PARTS, ASK) == "hello"
        assert render(CHATML, Message("user", (TextPart("a"), TextPart("b")))).startswith("<|im_start|>user\nab<|im_end|>")
        both = "{% if messages[0].content is string %}S{{ messages[0].content }}{% else %}" + self.PARTS + "{% endif %}"
        assert render(both, ASK) == "Shello"

    def test_templates_say_whether_they_take_media(self) -> None:
        assert ChatTemplate(self.PARTS).takes_media
        assert not ChatTemplate(CHATML).takes_media
        with pytest.raises(InvalidRequest, match="takes no image input"):
            render(CHATML, Message("user", (TextPart("a"), MediaPart("image", "data:"))))


class TestInstructions:
    SYSTEM = Message("system", (TextPart("S"),))

    def test_the_first_system_message_comes_first(self) -> None:
        turns = (user("u"), self.SYSTEM, self.SYSTEM)
        placed = place_instruction(turns, "do it")
        assert [message.text for message in placed] == ["u", "S\n\ndo it", "S"]
        assert turns[1].text == "S", "the request is left as it was"

    def test_else_the_last_user_message(self) -> None:
        placed = place_instruction((user("u1"), assistant("a"), user("u2"), assistant("b")), "do it")
        assert [message.text for message in placed] == ["u1", "a", "u2\n\ndo it", "b"]

    def test_else_a_new_system_message(self) -> None:
        placed = place_instruction((assistant("a"),), "do it")
        assert [(message.role, message.text) for message in placed] == [("system", "do it"), ("assistant", "a")]

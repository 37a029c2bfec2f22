"""POST /v1/messages: what a request becomes."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from mlxcel.core.chat import MediaPart, Message, TextPart, ToolCall, ToolChoice, ToolSpec
from mlxcel.core.errors import InvalidRequest
from mlxcel.core.jobs import ChatJob, OutputConstraint
from mlxcel.wire.anthropic.messages import CountTokensRequest, MessagesRequest, ignored_tools, to_job
from mlxcel.wire.context import RequestContext, ServerFacts
from mlxcel.wire.parse import parse_body
from mlxcel.wire.turns import MEDIA_NOTE

CONTEXT = RequestContext(ServerFacts("m"), request_id="1", created_s=1.0)
HELLO = [{"role": "user", "content": "hello"}]
PIXEL = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def job(**fields: Any) -> ChatJob:
    body = {"model": "any", "max_tokens": 8, "messages": HELLO} | fields
    return to_job(parse_body(MessagesRequest, orjson.dumps(body)), CONTEXT)


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        job(**fields)
    return caught.value


def text(role: Any, *texts: str) -> Message:
    return Message(role, tuple(TextPart(each) for each in texts))


class TestSystem:
    def test_string_and_blocks_become_the_leading_message(self) -> None:
        assert job(system="be brief").messages == (text("system", "be brief"), text("user", "hello"))
        blocks = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
        assert job(system=blocks).messages[0] == text("system", "a\n\nb")

    @pytest.mark.parametrize("system", ["", [], [{"type": "text", "text": ""}]])
    def test_an_empty_system_is_none(self, system: Any) -> None:
        assert job(system=system).messages == (text("user", "hello"),)

    def test_the_changing_billing_line_never_reaches_the_prompt(self) -> None:
        def prompt(build: str) -> ChatJob:
            line = f"x-anthropic-billing-header: cc_version=2.1.{build}; cc_entrypoint=cli; cch={build};"
            return job(system=[{"type": "text", "text": line}, {"type": "text", "text": "You are an agent."}])

        assert prompt("5f1a") == prompt("77bc")
        assert prompt("5f1a").messages[0] == text("system", "You are an agent.")

    def test_text_after_the_billing_line_stays(self) -> None:
        assert job(system="x-anthropic-billing-header: a=1\nBe kind.").messages[0] == text("system", "Be kind.")

    def test_a_user_who_writes_that_line_keeps_it(self) -> None:
        content = "x-anthropic-billing-header: what is this?"
        assert job(messages=[{"role": "user", "content": content}]).messages == (text("user", content),)

    def test_a_system_turn_joins_the_user_turn_before_it(self) -> None:
        messages = [{"role": "user", "content": "hi"}, {"role": "system", "content": "<reminder>be brief</reminder>"}]
        (only,) = job(messages=messages).messages
        assert (only.role, only.text) == ("user", "hi\n\n<reminder>be brief</reminder>")

    def test_at_the_head_it_joins_the_system_prompt(self) -> None:
        messages = [{"role": "system", "content": "two"}, *HELLO]
        assert job(system="one", messages=messages).messages[0] == text("system", "one\n\ntwo")

    def test_after_an_assistant_turn_it_joins_the_next_user_turn(self) -> None:
        messages = [
            *HELLO,
            {"role": "assistant", "content": "yes?"},
            {"role": "system", "content": [{"type": "text", "text": "note"}]},
            {"role": "user", "content": "go on"},
        ]
        roles = [(message.role, message.text) for message in job(messages=messages).messages]
        assert roles == [("user", "hello"), ("assistant", "yes?"), ("user", "note\n\ngo on")]

    def test_at_the_very_end_it_is_a_user_turn(self) -> None:
        messages = [*HELLO, {"role": "assistant", "content": "yes?"}, {"role": "system", "content": "note"}]
        assert job(messages=messages).messages[-1] == text("user", "note")

    def test_between_two_assistant_turns_it_is_a_user_turn(self) -> None:
        messages = [
            *HELLO,
            {"role": "assistant", "content": "a"},
            {"role": "system", "content": "note"},
            {"role": "assistant", "content": "b"},
        ]
        assert [message.text for message in job(messages=messages).messages] == ["hello", "a", "note", "b"]


class TestTurns:
    def test_neighbouring_turns_of_one_role_are_one_turn(self) -> None:
        messages = [
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": "c"},
        ]
        assert [message.text for message in job(messages=messages).messages] == ["a\n\nb", "c"]

    def test_an_agent_turn_and_its_results(self) -> None:
        messages = [
            {"role": "user", "content": [{"type": "text", "text": "read it"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I must read", "signature": "anything"},
                    {"type": "text", "text": "Reading."},
                    {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a.txt", "n": 2}},
                    {"type": "tool_use", "id": "toolu_2", "name": "list", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "one"}]},
                    {"type": "tool_result", "tool_use_id": "toolu_2", "content": "two", "is_error": True},
                    {"type": "text", "text": "now edit"},
                ],
            },
        ]
        calls = (ToolCall("toolu_1", "read", '{"path": "a.txt", "n": 2}'), ToolCall("toolu_2", "list", "{}"))
        assert job(messages=messages).messages == (
            text("user", "read it"),
            Message("assistant", (TextPart("Reading."),), tool_calls=calls, reasoning="I must read"),
            Message("tool", (TextPart("one"),), tool_call_id="toolu_1"),
            Message("tool", (TextPart("two"),), tool_call_id="toolu_2"),
            text("user", "now edit"),
        )

    def test_results_alone_make_no_empty_user_turn(self) -> None:
        messages = [*HELLO, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]
        assert [message.role for message in job(messages=messages).messages] == ["tool", "user"]
        only = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]}]
        assert [message.role for message in job(messages=only).messages] == ["tool"]

    def test_text_before_results_still_comes_after_them(self) -> None:
        content = [{"type": "text", "text": "look"}, {"type": "tool_result", "tool_use_id": "t", "content": "x"}]
        roles = [message.role for message in job(messages=[{"role": "user", "content": content}]).messages]
        assert roles == ["tool", "user"]

    def test_images_of_results_move_to_the_user_turn(self) -> None:
        content = [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "shot"}, PIXEL]},
            {"type": "tool_result", "tool_use_id": "t2", "content": [PIXEL]},
            {"type": "text", "text": "what is it?"},
        ]
        image = MediaPart("image", "data:image/png;base64,AAAA")
        assert job(messages=[{"role": "user", "content": content}]).messages == (
            Message("tool", (TextPart(f"shot\n{MEDIA_NOTE}"),), tool_call_id="t1"),
            Message("tool", (TextPart(MEDIA_NOTE),), tool_call_id="t2"),
            Message("user", (image, image, TextPart("what is it?"))),
        )

    def test_images_without_a_following_user_turn_get_one(self) -> None:
        content = [{"type": "tool_result", "tool_use_id": "t1", "content": [PIXEL]}]
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "a cat"}]
        assert [message.role for message in job(messages=messages).messages] == ["tool", "user", "assistant"]

    def test_images_by_url(self) -> None:
        block = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
        (only,) = job(messages=[{"role": "user", "content": [block]}]).messages
        assert only.media == (MediaPart("image", "https://example.com/a.png"),)

    def test_text_documents_and_search_results_are_read(self) -> None:
        blocks = [
            {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "body"}},
            {"type": "search_result", "title": "R", "source": "s", "content": [{"type": "text", "text": "found"}]},
        ]
        (only,) = job(messages=[{"role": "user", "content": blocks}]).messages
        assert [part.text for part in only.parts if isinstance(part, TextPart)] == ["T\nbody", "R\ns\nfound"]

    def test_blocks_of_server_tools_and_redacted_thinking_are_dropped(self) -> None:
        blocks = [
            {"type": "redacted_thinking", "data": "xxx"},
            {"type": "text", "text": "a"},
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
            {"type": "text", "text": "b"},
        ]
        assert job(messages=[*HELLO, {"role": "assistant", "content": blocks}]).messages[-1].text == "ab"

    def test_a_trailing_assistant_turn_is_continued(self) -> None:
        prefilled = job(messages=[*HELLO, {"role": "assistant", "content": "The answer is"}])
        assert prefilled.continue_final
        assert prefilled.messages[-1] == text("assistant", "The answer is")

    @pytest.mark.parametrize(
        ("messages", "field"),
        [
            ([], "messages"),
            ([{"role": "user", "content": ""}], "messages"),
            ([{"role": "tool", "content": "x"}], "messages[0].role"),
            ([{"role": "user"}], "messages[0].content"),
            ([{"role": "user", "content": None}], "messages[0].content"),
            ([{"role": "user", "content": 3}], "messages[0].content"),
            (["x"], "messages[0]"),
            ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
            ([{"role": "user", "content": [{"type": "video"}]}], "messages[0].content[0]"),
            ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
            ([{"role": "user", "content": [{"type": "tool_result"}]}], "messages[0].content[0].tool_use_id"),
            (
                [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}],
                "messages[0].content[0]",
            ),
            ([{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a"}]}], "messages[0].content[0]"),
            ([{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}], None),
            ([{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "data": "x"}}]}], None),
            ([*HELLO, {"role": "system", "content": [PIXEL]}], "messages[1].content"),
        ],
    )
    def test_what_cannot_be_read_is_a_400_that_names_it(self, messages: Any, field: str | None) -> None:
        error = refused(messages=messages)
        assert error.param is not None
        if field is not None:
            assert error.param == field


class TestTools:
    function = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}  # noqa: RUF012

    def test_functions_are_kept_and_server_tools_dropped(self) -> None:
        tools = [self.function, {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]
        assert job(tools=tools).tools == (ToolSpec("f", "d", {"type": "object", "properties": {}}),)
        body = {"model": "m", "max_tokens": 8, "messages": HELLO, "tools": tools}
        assert ignored_tools(parse_body(MessagesRequest, orjson.dumps(body))) == ("web_search",)

    @pytest.mark.parametrize(
        ("choice", "expected"),
        [
            (None, ToolChoice()),
            ({"type": "auto"}, ToolChoice()),
            ({"type": "any"}, ToolChoice("required")),
            ({"type": "none"}, ToolChoice("none")),
            ({"type": "tool", "name": "f"}, ToolChoice("named", "f")),
        ],
    )
    def test_choices(self, choice: Any, expected: ToolChoice) -> None:
        assert job(tools=[self.function], tool_choice=choice).tool_choice == expected

    def test_parallel_calls_can_be_switched_off(self) -> None:
        assert job(tools=[self.function]).parallel_tool_calls
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        assert not job(tools=[self.function], tool_choice=choice).parallel_tool_calls

    @pytest.mark.parametrize("choice", ["auto", {"type": "tool"}, {"type": "tool", "name": " "}, {"type": "required"}, {}])
    def test_choices_that_mean_nothing(self, choice: Any) -> None:
        assert str(refused(tools=[self.function], tool_choice=choice).param).startswith("tool_choice")

    @pytest.mark.parametrize("tools", ["x", [1], [{"name": "", "input_schema": {}}], [{"name": "f", "input_schema": "x"}]])
    def test_tools_that_cannot_be_read(self, tools: Any) -> None:
        assert str(refused(tools=tools).param).startswith("tools")


class TestOptions:
    def test_limits_and_sampling(self) -> None:
        options = job(max_tokens=9, temperature=0.5, top_p=0.9, top_k=7, stop_sequences=["END", ""]).options
        assert (options.max_tokens, options.stop) == (9, ("END",))
        assert (options.sampling.temperature, options.sampling.top_p, options.sampling.top_k) == (0.5, 0.9, 7)

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({}, (None, None, None)),
            ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, (True, 2048, None)),
            ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, (True, None, "high")),
            ({"thinking": {"type": "disabled"}}, (False, None, None)),
            ({"output_config": {"effort": "low"}}, (True, None, "low")),
        ],
    )
    def test_thinking(self, fields: Any, expected: Any) -> None:
        reasoning = job(**fields).reasoning
        assert (reasoning.enabled, reasoning.budget_tokens, reasoning.effort) == expected

    @pytest.mark.parametrize("thinking", [True, {}, {"type": "maybe"}, {"type": "enabled", "budget_tokens": "10"}])
    def test_thinking_that_means_nothing(self, thinking: Any) -> None:
        assert str(refused(thinking=thinking).param).startswith("thinking")

    def test_output_formats(self) -> None:
        form = {"type": "json_schema", "schema": {"type": "object"}}
        expected = OutputConstraint("json_schema", {"type": "object"})
        assert job(output_config={"format": form}).options.constraint == expected
        assert job(output_format=form).options.constraint == expected

    def test_the_user_id_is_the_cache_session(self) -> None:
        assert job(metadata={"user_id": "session-1"}).options.session == "session-1"

    @pytest.mark.parametrize("value", [1, "x", [], {"user_id": 4}, {"other": {}}])
    def test_fields_that_are_not_served_are_ignored_whatever_they_hold(self, value: Any) -> None:
        ignored = {name: value for name in ("metadata", "container", "service_tier", "context_management", "mcp_servers")}
        assert job(**ignored) == job()

    @pytest.mark.parametrize("limit", [None, 0, -1, "8", 1.5, True])
    def test_max_tokens_is_required_and_positive(self, limit: Any) -> None:
        assert refused(max_tokens=limit).param == "max_tokens"

    def test_counting_needs_no_limit_and_sees_the_same_prompt(self) -> None:
        body = {"model": "any", "messages": HELLO, "system": "s", "thinking": {"type": "adaptive"}}
        counted = to_job(parse_body(CountTokensRequest, orjson.dumps(body)), CONTEXT)
        answered = job(system="s", thinking={"type": "adaptive"})
        assert (counted.messages, counted.reasoning) == (answered.messages, answered.reasoning)

"""POST /v1/responses: what a request becomes."""

from __future__ import annotations

from typing import Any, Literal

import orjson
import pytest

from mlxcel.core.chat import MediaPart, Message, TextPart, ToolCall, ToolChoice
from mlxcel.core.errors import InvalidRequest
from mlxcel.core.jobs import ChatJob, OutputConstraint
from mlxcel.wire.context import RequestContext, ServerFacts
from mlxcel.wire.openai.responses.capsule import seal, unseal
from mlxcel.wire.openai.responses.history import SUMMARY_HEAD, segments, to_messages, unfold
from mlxcel.wire.openai.responses.items import dump_item, load_items, parse_items, resolve_references
from mlxcel.wire.openai.responses.request import ResponsesRequest, input_items, refuse_unserved, to_job
from mlxcel.wire.openai.responses.tools import ToolSet, read_tools
from mlxcel.wire.parse import parse_body
from mlxcel.wire.turns import MEDIA_NOTE

Compat = Literal["strict", "lenient"]
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"}


def translate(compat: Compat = "strict", **fields: Any) -> tuple[ChatJob, ToolSet, tuple[str, ...]]:
    context = RequestContext(ServerFacts("m", compat=compat), request_id="1", created_s=1.0)
    request = parse_body(ResponsesRequest, orjson.dumps({"model": "any", "input": "hello"} | fields))
    refuse_unserved(request)
    tools = read_tools(request.tools or (), context.facts)
    items, ignored = input_items(request, context.facts)
    return to_job(request, unfold(items), tools, context), tools, (*tools.ignored, *ignored)


def job(**fields: Any) -> ChatJob:
    return translate(**fields)[0]


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        job(**fields)
    return caught.value


def text(role: Any, *texts: str) -> Message:
    return Message(role, tuple(TextPart(each) for each in texts))


def call(name: str, call_id: str, arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments} | more


def result(call_id: str, output: Any = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def says(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


class TestInput:
    def test_a_string_is_a_user_turn(self) -> None:
        assert job().messages == (text("user", "hello"),)

    def test_items_without_a_type_are_messages(self) -> None:
        items = [says("developer", "d"), says("user", [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}])]
        assert job(input=items).messages == (text("system", "d"), text("user", "a", "b"))

    def test_instructions_lead_in_one_system_turn(self) -> None:
        items = [says("developer", "d"), says("user", "u"), says("system", "later")]
        assert job(input=items, instructions="i").messages == (
            text("system", "i\n\nd"),
            text("user", "u"),
            text("system", "later"),
        )

    def test_a_replayed_turn_is_one_message(self) -> None:
        items = [
            says("user", "read it"),
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Reading.", "annotations": [], "logprobs": []}],
            },
            call("read", "call_1", '{"path":"a"}', id="fc_1", status="completed"),
            call("list", "call_2"),
            result("call_1"),
            result("call_2", [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]),
        ]
        calls = (ToolCall("call_1", "read", '{"path":"a"}'), ToolCall("call_2", "list", "{}"))
        assert job(input=items).messages == (
            text("user", "read it"),
            Message("assistant", (TextPart("Reading."),), tool_calls=calls, reasoning="hm"),
            Message("tool", (TextPart("done"),), tool_call_id="call_1"),
            Message("tool", (TextPart("x\ny"),), tool_call_id="call_2"),
        )

    def test_two_answers_stay_two_turns_and_refusals_are_text(self) -> None:
        items = [says("assistant", "a"), says("assistant", [{"type": "refusal", "refusal": "no"}]), says("user", "u")]
        assert [message.text for message in job(input=items).messages] == ["a", "no", "u"]

    def test_thinking_opens_the_turn_it_belongs_to(self) -> None:
        thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}
        items = [says("user", "u"), says("assistant", "a"), thought, call("f", "c"), result("c")]
        assert [(message.text, message.reasoning) for message in job(input=items).messages[1:3]] == [("a", None), ("", "s")]

    def test_sealed_thinking_is_read_and_a_strangers_is_not(self) -> None:
        ours = {"type": "reasoning", "summary": [], "encrypted_content": seal("reasoning", {"text": "deep"})}
        theirs = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABo-opaque=="}
        items = [says("user", "u"), ours, says("assistant", "a"), says("user", "v"), theirs, says("assistant", "b")]
        assert [message.reasoning for message in job(input=items).messages] == [None, "deep", None, None]

    def test_an_interrupted_thought_is_a_turn(self) -> None:
        items = [says("user", "u"), {"type": "reasoning", "content": [{"text": "hm"}]}, says("user", "go on")]
        assert [message.role for message in job(input=items).messages] == ["user", "assistant", "user"]

    def test_images_of_outputs_move_to_the_user_turn_after_the_group(self) -> None:
        items = [
            says("user", "look"),
            call("shot", "c1"),
            call("shot", "c2"),
            result("c1", [{"type": "input_text", "text": "ok"}, IMAGE]),
            result("c2", [IMAGE]),
            says("assistant", "I see"),
        ]
        image = MediaPart("image", "data:image/png;base64,AAAA", detail="low")
        messages = job(input=items).messages
        assert [message.role for message in messages] == ["user", "assistant", "tool", "tool", "user", "assistant"]
        assert messages[2].text == f"ok\n{MEDIA_NOTE}"
        assert messages[3].text == MEDIA_NOTE
        assert messages[4].parts == (image, image)

    @pytest.mark.parametrize("role", ["assistant", "system", "developer"])
    def test_images_of_other_roles_move_to_a_user_turn(self, role: str) -> None:
        messages = job(input=[says("user", "u"), says(role, [{"type": "text", "text": "t"}, IMAGE])]).messages
        assert (messages[1].text, messages[1].media) == ("t", ())
        assert messages[2].role == "user"
        assert len(messages[2].media) == 1

    def test_media_parts_of_chat_completions_are_served(self) -> None:
        parts = [
            {"type": "image_url", "image_url": {"url": "http://e/i.png"}},
            {"type": "video_url", "video_url": {"url": "http://e/v.mp4", "fps": 2.0}},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        ]
        (only,) = job(input=[says("user", parts)]).messages
        assert [(part.kind, part.url, part.fps, part.format) for part in only.media] == [
            ("image", "http://e/i.png", None, None),
            ("video", "http://e/v.mp4", 2.0, None),
            ("audio", "AAAA", None, "wav"),
        ]

    @pytest.mark.parametrize(
        ("items", "field"),
        [
            ([1], "input[0]"),
            ([{}], "input[0]"),
            ([{"type": 3}], "input[0]"),
            ([says("tool", "x")], "input[0].role"),
            ([{"role": "user"}], "input[0].content"),
            ([says("user", 3)], "input[0].content"),
            ([says("user", ["x"])], "input[0].content[0]"),
            ([says("user", [{"type": "hologram"}])], "input[0].content[0]"),
            ([says("user", [{"type": "input_text"}])], "input[0].content[0].text"),
            ([says("user", [{"type": "input_image", "file_id": "f"}])], "input[0].content[0].image_url"),
            ([says("user", [{"type": "input_file", "file_id": "f"}])], "input[0].content[0]"),
            ([call("f", "c") | {"arguments": {}}], "input[0].arguments"),
            ([result("c", {"a": 1})], "input[0].output"),
            ([says("user", "u"), {"type": "web_search_call", "id": "ws"}], "input[1].type"),
            ([says("user", "u"), {"type": "item_reference", "id": "msg_1"}], "input[1].id"),
            ([{"type": "compaction", "encrypted_content": "gAAAA"}], "input[0].encrypted_content"),
        ],
    )
    def test_what_cannot_be_read_is_a_400_that_names_it(self, items: Any, field: str) -> None:
        assert refused(input=items).param == field

    @pytest.mark.parametrize("empty", ["", "  \n", [], [says("user", "")], [says("user", [])], None])
    def test_a_request_has_to_say_something(self, empty: Any) -> None:
        assert refused(input=empty).param == "input"
        assert job(input=empty, instructions="Tell a joke.").messages[0] == text("system", "Tell a joke.")

    def test_a_call_or_a_thought_alone_says_something(self) -> None:
        assert job(input=[call("f", "c")]).messages[0].tool_calls
        assert job(input=[{"type": "reasoning", "content": [{"text": "hm"}]}]).messages[0].reasoning == "hm"

    def test_stored_items_come_back_as_they_were(self) -> None:
        documents = [
            says("user", [{"type": "input_text", "text": "é"}, IMAGE]),
            call("f", "c", namespace="ns"),
            result("c", [IMAGE]),
            {"type": "reasoning", "content": [{"text": "hm"}], "encrypted_content": "x"},
        ]
        items = parse_items(documents)
        assert load_items([orjson.dumps(dump_item(item)) for item in items]) == items

    def test_references_are_replaced_by_what_they_name(self) -> None:
        stored = orjson.dumps(says("assistant", "hi") | {"type": "message", "id": "msg_1"})
        items = parse_items([{"type": "item_reference", "id": "msg_1"}, {"type": "item_reference", "id": "gone"}])
        found = resolve_references(items, lambda item_id: stored if item_id == "msg_1" else None)
        assert [item.type for item in found] == ["message", "item_reference"]


class TestCompactionItems:
    def capsule(self, summary: str = "they talked", items: Any = ()) -> dict[str, Any]:
        content = seal("compaction", {"summary": summary, "items": list(items)})
        return {"type": "compaction", "id": "cmp_1", "encrypted_content": content}

    def test_it_replaces_all_before_it_but_system_messages(self) -> None:
        retained = [says("user", "latest"), says("assistant", "answer")]
        items = [says("system", "s"), says("user", "old"), says("assistant", "older"), self.capsule(items=retained)]
        assert job(input=[*items, says("user", "now")]).messages == (
            text("system", "s"),
            text("user", SUMMARY_HEAD + "they talked", "\n\n", "latest"),
            text("assistant", "answer"),
            text("user", "now"),
        )

    def test_sent_alone_it_is_enough(self) -> None:
        (first, *_) = job(input=[self.capsule(items=[call("f", "c"), result("c")]), says("user", "now")]).messages
        assert first == text("user", SUMMARY_HEAD + "they talked")

    def test_the_last_one_counts(self) -> None:
        items = [self.capsule("first"), says("user", "a"), self.capsule("second")]
        assert job(input=items).messages == (text("user", SUMMARY_HEAD + "second"),)

    @pytest.mark.parametrize(
        "content",
        [
            seal("reasoning", {"text": "x"}),
            seal("compaction", {"summary": 3, "items": []}),
            seal("compaction", {"summary": "s"}),
            seal("compaction", {"summary": "s", "items": [{"type": "compaction", "encrypted_content": "x"}]}),
            seal("compaction", {"summary": "s", "items": [{"role": "tool"}]}),
            "%%%",
            "",
            "bm90IGpzb24",
        ],
    )
    def test_a_capsule_is_input_like_any_other(self, content: str) -> None:
        refused(input=[{"type": "compaction", "encrypted_content": content}])

    def test_capsules_round_trip(self) -> None:
        assert (unseal("k", seal("k", {"text": "é" * 100})) or {})["text"] == "é" * 100


class TestSegments:
    def cuts(self, documents: list[dict[str, Any]]) -> list[int]:
        return [len(piece) for piece in segments(unfold(parse_items(documents)))]

    def test_cuts_fall_before_user_turns_and_after_tool_groups(self) -> None:
        documents = [
            says("system", "never part of it"),
            says("user", "a"),
            says("assistant", "b"),
            says("user", "c"),
            call("f", "c1"),
            call("g", "c2"),
            result("c1"),
            result("c2"),
            says("assistant", "d"),
            call("f", "c3"),
            result("c3"),
            says("user", "e"),
        ]
        assert self.cuts(documents) == [2, 5, 3, 1]

    def test_a_call_is_never_parted_from_its_output(self) -> None:
        assert self.cuts([says("user", "a"), call("f", "c"), says("user", "wait"), result("c"), says("user", "b")]) == [4, 1]

    def test_a_call_that_was_never_answered_holds_nothing_together(self) -> None:
        assert self.cuts([says("user", "a"), call("f", "c"), says("user", "b")]) == [2, 1]

    def test_pieces_translate_to_the_same_messages_as_the_whole(self) -> None:
        documents = [says("user", "a"), call("f", "c"), result("c", [IMAGE]), says("assistant", "d"), says("user", "e")]
        history = unfold(parse_items(documents))
        names = ToolSet().flat_name
        apart = [message for piece in segments(history) for message in to_messages(piece, names)]
        assert tuple(apart) == to_messages(history, names)


class TestTools:
    function = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}  # noqa: RUF012
    space = {"type": "namespace", "name": "ns", "description": "d", "tools": [  # noqa: RUF012
        {"type": "function", "name": "g", "parameters": {"type": "object"}}]}  # fmt: skip

    def test_namespaces_are_flattened(self) -> None:
        found, tools, _ = translate(tools=[self.function, self.space, {"type": "namespace", "name": "empty"}])
        assert [spec.name for spec in found.tools] == ["f", "g"]
        assert tools.origin("g") == ("ns", "g")
        assert tools.origin("f") == (None, "f")
        assert tools.flat_name("ns", "g") == "g"

    def test_names_that_clash_are_told_apart(self) -> None:
        other = self.space | {"name": "other"}
        found, tools, _ = translate(tools=[self.space, other], input=[call("g", "c", namespace="other"), result("c")])
        assert [spec.name for spec in found.tools] == ["ns__g", "other__g"]
        assert tools.origin("other__g") == ("other", "g")
        assert found.messages[0].tool_calls[0].name == "other__g"

    @pytest.mark.parametrize(
        "kind",
        ["web_search", "file_search", "computer_use_preview", "code_interpreter", "image_generation", "mcp", "custom",
         "apply_patch", "function_shell"],
    )  # fmt: skip
    def test_built_in_tools_are_refused_or_left_out(self, kind: str) -> None:
        tools = [self.function, {"type": kind, "name": "x"}]
        assert refused(tools=tools).param == "tools[1].type"
        found, tool_set, ignored = translate("lenient", tools=tools)
        assert [spec.name for spec in found.tools] == ["f"]
        assert ignored == (kind,)
        assert [tool["type"] for tool in tool_set.echo] == ["function"]

    def test_built_in_members_of_a_namespace_too(self) -> None:
        space = {"type": "namespace", "name": "ns", "tools": [{"type": "custom", "name": "x"}, self.function]}
        assert refused(tools=[space]).param == "tools[0].tools[0].type"
        assert translate("lenient", tools=[space])[2] == ("custom",)

    def test_items_of_built_in_tools_likewise(self) -> None:
        found, _, ignored = translate("lenient", input=[says("user", "u"), {"type": "web_search_call", "id": "w"}])
        assert (len(found.messages), ignored) == (1, ("web_search_call",))

    @pytest.mark.parametrize(
        ("choice", "expected"),
        [
            (None, ToolChoice()),
            ("auto", ToolChoice()),
            ("none", ToolChoice("none")),
            ("required", ToolChoice("required")),
            ({"type": "function", "name": "f"}, ToolChoice("named", "f")),
            ({"type": "function", "name": "g", "namespace": "ns"}, ToolChoice("named", "g")),
        ],
    )
    def test_choices(self, choice: Any, expected: ToolChoice) -> None:
        assert job(tools=[self.function, self.space], tool_choice=choice).tool_choice == expected

    @pytest.mark.parametrize(
        "choice", ["always", 3, {"type": "function"}, {"type": "function", "name": " "}, {"type": "web_search"}]
    )
    def test_choices_that_mean_nothing(self, choice: Any) -> None:
        assert str(refused(tools=[self.function], tool_choice=choice).param).startswith("tool_choice")

    @pytest.mark.parametrize("tools", ["x", ["x"], [{}], [{"type": "function"}], [{"type": "function", "name": ""}]])
    def test_tools_that_cannot_be_read(self, tools: Any) -> None:
        assert str(refused(tools=tools).param).startswith("tools")


class TestOptions:
    def test_limits_and_sampling(self) -> None:
        options = job(max_output_tokens=9, temperature=0.5, top_p=0.9, prompt_cache_key="k", user="u").options
        assert (options.max_tokens, options.session) == (9, "k")
        assert (options.sampling.temperature, options.sampling.top_p) == (0.5, 0.9)

    def test_sessions_fall_back_to_the_user(self) -> None:
        assert job(user="u", safety_identifier="s").options.session == "u"
        assert job(safety_identifier="s").options.session == "s"

    @pytest.mark.parametrize(
        ("fields", "count"),
        [({}, -1), ({"top_logprobs": 3}, 3), ({"include": ["message.output_text.logprobs"]}, 0), ({"top_logprobs": 0}, -1)],
    )
    def test_logprobs(self, fields: Any, count: int) -> None:
        assert job(**fields).options.sampling.top_logprobs == count

    @pytest.mark.parametrize(
        ("effort", "enabled", "word"),
        [("high", True, "high"), (" None ", False, None), ("off", False, None), (False, False, None), (0, False, None),
         ("extra", True, "extra"), (None, None, None)],
    )  # fmt: skip
    def test_effort(self, effort: Any, enabled: bool | None, word: str | None) -> None:
        reasoning = job(reasoning={"effort": effort}).reasoning
        assert (reasoning.enabled, reasoning.effort) == (enabled, word)

    def test_a_thinking_budget(self) -> None:
        assert job(thinking_budget_tokens=0).reasoning.budget_tokens == 0

    def test_formats(self) -> None:
        form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
        assert job(text={"format": form}).options.constraint == OutputConstraint("json_schema", {"type": "object"})
        assert job(text={"format": {"type": "text"}, "verbosity": "low"}).options.constraint is None
        assert refused(text={"format": {"type": "json_object"}}).param == "text.format.type"
        assert job(compat="lenient", text={"format": {"type": "json_object"}}).options.constraint == OutputConstraint(
            "json_object", {}
        )
        assert refused(text={"format": {"type": "json_schema", "name": "n"}}).param == "text.format.schema"

    @pytest.mark.parametrize(
        "fields",
        [
            {"background": True},
            {"truncation": "auto"},
            {"prompt": {"id": "pmpt_1"}},
            {"conversation": "c", "previous_response_id": "r"},
            {"conversation": {"id": "c"}, "previous_response_id": "r"},
            {"metadata": {str(number): "x" for number in range(17)}},
            {"metadata": {"k" * 65: "x"}},
            {"metadata": {"k": "x" * 513}},
            {"metadata": {"k": 1}},
            {"max_output_tokens": 0},
            {"max_tool_calls": 0},
            {"top_logprobs": 21},
            {"temperature": -1},
            {"xtc_probability": 1.5},
            {"xtc_threshold": 0.6},
            {"context_management": [{"type": "other"}]},
            {"context_management": [{"type": "compaction", "compact_threshold": 0}]},
            {"context_management": [{"type": "compaction", "compact_threshold": 100_000_001}]},
            {"model": None},
        ],
    )
    def test_what_is_not_served_is_refused_by_name(self, fields: dict[str, Any]) -> None:
        assert str(refused(**fields).param).partition(".")[0].partition("[")[0] in fields

    def test_what_changes_nothing_is_accepted(self) -> None:
        plain = job()
        assert job(truncation="disabled", background=False, service_tier="flex", store=False, include=[]) == plain
        assert job(stream_options={"include_obfuscation": False}, parallel_tool_calls=True, metadata={"a": "b"}) == plain

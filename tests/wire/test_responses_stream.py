"""POST /v1/responses: answers and event streams, checked with the official SDK as the oracle."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any

import httpx2
import openai
import orjson
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from mlxcel.core import errors
from mlxcel.core.chat import ToolCall
from mlxcel.core.events import (
    CompactionCompleted,
    CompactionStarted,
    Completed,
    FinishReason,
    OutputEvent,
    PieceLogprob,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from mlxcel.core.usage import Timings, Usage
from mlxcel.testing.answers import answer_events
from mlxcel.testing.frames import Frame, read_frames
from mlxcel.wire.context import RequestContext, ServerFacts
from mlxcel.wire.openai.responses.answer import ResponseBuilder, ResponseStreamWriter
from mlxcel.wire.openai.responses.capsule import unseal
from mlxcel.wire.openai.responses.envelope import mark_cancelled, response_head
from mlxcel.wire.openai.responses.history import unfold
from mlxcel.wire.openai.responses.items import parse_items
from mlxcel.wire.openai.responses.request import ResponsesRequest, input_items, to_job
from mlxcel.wire.openai.responses.tools import read_tools
from mlxcel.wire.parse import parse_body

CONTEXT = RequestContext(ServerFacts("tiny"), request_id="abc", created_s=1.5)
CALLS = (ToolCall("call_1", "read", '{"path": "a.txt", "deep": {"x": [1, "}"]}}'), ToolCall("call_2", "list", "{}"))
PIECES = (
    PieceLogprob(1, "He", b"He", -0.5, (PieceLogprob(1, "He", b"He", -0.5), PieceLogprob(2, "Hi", b"Hi", -1.5))),
    PieceLogprob(3, "y", b"y", -0.25),
)
MODELS: dict[str, type[BaseModel]] = {
    typing.get_args(model.model_fields["type"].annotation)[0]: model
    for model in typing.get_args(typing.get_args(ResponseStreamEvent)[0])
}

ANSWERS = {
    "text": answer_events("Hello there."),
    "thinking": answer_events("Hi.", reasoning="I greet back. 👋"),
    "calls": answer_events("Reading.", reasoning="hm", calls=CALLS),
    "only calls": answer_events(calls=CALLS),
    "empty": answer_events(),
    "cut": answer_events("Hello th", reason=FinishReason.LENGTH),
    "cut in thought": answer_events(reasoning="I wonder", reason=FinishReason.LENGTH),
    "cut in call": answer_events(calls=CALLS[:1], reason=FinishReason.LENGTH),
    "stopped": answer_events("Hello", reason=FinishReason.STOP_STRING, stop_string=" there"),
    "logprobs": answer_events("Hey", logprobs=PIECES),
    "cancelled": answer_events("Hel", reason=FinishReason.CANCELLED),
}
UNCOMPLETED = ("cut", "cut in thought", "cut in call", "cancelled")


def builder(**fields: Any) -> ResponseBuilder:
    request = parse_body(ResponsesRequest, orjson.dumps({"model": "any", "input": "hello"} | fields))
    tools = read_tools(request.tools or (), CONTEXT.facts)
    job = to_job(request, unfold(input_items(request, CONTEXT.facts)[0]), tools, CONTEXT)
    return ResponseBuilder(
        response_head(request, job, tools, CONTEXT),
        tools,
        now=lambda: 2.5,
        max_tool_calls=request.max_tool_calls,
        seals_reasoning=request.encrypts_reasoning,
        compaction_item=lambda done: {"type": "compaction", "encrypted_content": done.summary},
    )


def stream(events: Sequence[OutputEvent], **fields: Any) -> bytes:
    writer = ResponseStreamWriter(builder(**fields))
    return writer.open() + b"".join(writer.on(event) for event in events)


def frames(events: Sequence[OutputEvent], **fields: Any) -> list[Frame]:
    return read_frames(stream(events, **fields))


def whole(events: Sequence[OutputEvent], **fields: Any) -> dict[str, Any]:
    """The response as a plain answer has it."""
    made = builder(**fields)
    for event in events:
        made.on(event)
    return made.response


def accumulated(raw: bytes) -> Any:
    """The stream as the SDK's own helper puts it together."""

    def reply(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=raw, headers={"content-type": "text/event-stream"})

    with (
        httpx2.Client(transport=httpx2.MockTransport(reply)) as http,
        openai.OpenAI(api_key="x", http_client=http, max_retries=0) as client,
        client.responses.stream(model="m", input="hi") as events,
    ):
        return events.get_final_response()


@pytest.mark.parametrize("name", ANSWERS)
class TestEveryAnswer:
    def test_each_event_is_valid_and_named_after_its_type(self, name: str) -> None:
        for event, data in frames(ANSWERS[name]):
            MODELS[data["type"]].model_validate(data, strict=True)
            assert event == data["type"]

    def test_sequence_numbers_count_up(self, name: str) -> None:
        numbers = [frame.data["sequence_number"] for frame in frames(ANSWERS[name])]
        assert numbers == list(range(len(numbers)))

    def test_every_response_is_complete_and_every_item_has_a_status(self, name: str) -> None:
        for _, data in frames(ANSWERS[name]):
            if "response" in data:
                assert set(Response.model_fields) <= set(data["response"])
                assert isinstance(data["response"]["output"], list)
            for item in [*data.get("response", {}).get("output", []), *([data["item"]] if "item" in data else [])]:
                assert item["status"] in ("in_progress", "completed", "incomplete")

    def test_the_order_is_openais(self, name: str) -> None:
        events = [frame.data for frame in frames(ANSWERS[name])]
        assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
        last = {"cut": "incomplete", "cut in thought": "incomplete", "cut in call": "incomplete", "cancelled": "incomplete"}
        assert events[-1]["type"] == f"response.{last.get(name, 'completed')}"
        open_item, open_part = None, False
        for event in events[2:-1]:
            kind = event["type"]
            if kind == "response.output_item.added":
                assert open_item is None
                open_item = event["item"]["id"]
            elif kind == "response.output_item.done":
                assert (event["item"]["id"], open_part) == (open_item, False)
                open_item = None
            else:
                assert event["item_id"] == open_item
                if kind == "response.content_part.added":
                    open_part = True
                elif kind == "response.content_part.done":
                    open_part = False
                else:
                    assert open_part or "function_call" in kind
        assert open_item is None

    def test_done_items_are_the_output_and_have_unique_ids(self, name: str) -> None:
        events = [frame.data for frame in frames(ANSWERS[name])]
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert done == events[-1]["response"]["output"]
        assert len({item["id"] for item in done}) == len(done)
        places = [event["output_index"] for event in events if event["type"] == "response.output_item.done"]
        assert places == list(range(len(done)))

    def test_deltas_add_up(self, name: str) -> None:
        texts: dict[str, str] = {}
        for _, data in frames(ANSWERS[name]):
            if data["type"].endswith(".delta"):
                texts[data["item_id"]] = texts.get(data["item_id"], "") + data["delta"]
            elif data["type"].endswith(("text.done", "arguments.done")):
                assert texts.get(data["item_id"], "") == data.get("text", data.get("arguments"))

    def test_the_last_event_holds_what_a_plain_answer_is(self, name: str) -> None:
        plain = whole(ANSWERS[name])
        Response.model_validate(plain, strict=True)
        assert frames(ANSWERS[name])[-1].data["response"] == plain

    def test_an_output_can_be_sent_back(self, name: str) -> None:
        unfold(parse_items(whole(ANSWERS[name])["output"]))


@pytest.mark.parametrize("name", [name for name in ANSWERS if name not in UNCOMPLETED])
def test_the_sdk_puts_the_stream_together(name: str) -> None:
    final = accumulated(stream(ANSWERS[name]))
    plain = Response.model_validate(whole(ANSWERS[name]))
    assert final.output_text == plain.output_text
    assert [item.type for item in final.output] == [item.type for item in plain.output]
    assert final.usage == plain.usage


class TestGolden:
    def test_a_whole_stream(self) -> None:
        events = answer_events("Hi", reasoning="mm", calls=[ToolCall("c1", "f", '{"a":1}')], piece_chars=4)
        compact = [
            (frame.event.removeprefix("response."), frame.data.get("delta"), frame.data["output_index"])
            for frame in frames(events)[2:-1]
            if frame.event is not None
        ]
        assert compact == [
            ("output_item.added", None, 0),
            ("content_part.added", None, 0),
            ("reasoning_text.delta", "mm", 0),
            ("reasoning_text.done", None, 0),
            ("content_part.done", None, 0),
            ("output_item.done", None, 0),
            ("output_item.added", None, 1),
            ("content_part.added", None, 1),
            ("output_text.delta", "Hi", 1),
            ("output_text.done", None, 1),
            ("content_part.done", None, 1),
            ("output_item.done", None, 1),
            ("output_item.added", None, 2),
            ("function_call_arguments.delta", '{"a"', 2),
            ("function_call_arguments.delta", ":1}", 2),
            ("function_call_arguments.done", None, 2),
            ("output_item.done", None, 2),
        ]

    def test_items(self) -> None:
        output = whole(ANSWERS["calls"])["output"]
        assert [item["id"][:3] for item in output] == ["rs_", "msg", "fc_", "fc_"]
        assert output[2]["call_id"] == "call_1"
        assert output[2]["arguments"] == CALLS[0].arguments
        assert output[1]["content"] == [{"type": "output_text", "text": "Reading.", "annotations": [], "logprobs": []}]

    def test_usage(self) -> None:
        assert whole(ANSWERS["thinking"])["usage"] == {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 15,
        }

    @pytest.mark.parametrize(
        ("name", "status", "details"),
        [
            ("text", "completed", None),
            ("cut", "incomplete", {"reason": "max_output_tokens"}),
            ("cancelled", "cancelled", None),
        ],
    )
    def test_states(self, name: str, status: str, details: Any) -> None:
        response = whole(ANSWERS[name])
        assert (response["status"], response["incomplete_details"]) == (status, details)
        assert response["output"][-1]["status"] == ("completed" if status == "completed" else "incomplete")
        assert (response["completed_at"] is None) == (status != "completed")

    def test_an_empty_answer_is_an_empty_message(self) -> None:
        (item,) = whole(ANSWERS["empty"])["output"]
        assert item["content"][0]["text"] == ""
        assert [item["type"] for item in whole(ANSWERS["cut in thought"])["output"]] == ["reasoning"]

    def test_logprobs(self) -> None:
        deltas = [frame.data for frame in frames(ANSWERS["logprobs"]) if frame.event == "response.output_text.delta"]
        assert [entry["token"] for delta in deltas for entry in delta["logprobs"]] == ["He", "y"]
        part = whole(ANSWERS["logprobs"])["output"][0]["content"][0]
        assert [entry["token"] for entry in part["logprobs"][0]["top_logprobs"]] == ["He", "Hi"]

    def test_the_first_logprob_survives_the_change_from_thinking_to_text(self) -> None:
        events = [ReasoningDelta("hm"), *answer_events("Hey", logprobs=PIECES)[1:]]
        part = whole(events)["output"][1]["content"][0]
        assert [entry["token"] for entry in part["logprobs"]] == ["He", "y"]

    def test_calls_over_the_limit_are_left_out(self) -> None:
        assert [item["type"] for item in whole(ANSWERS["only calls"], max_tool_calls=1)["output"]] == ["function_call"]
        kinds = [frame.event for frame in frames(ANSWERS["only calls"], max_tool_calls=1)]
        assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 1

    def test_calls_go_out_under_the_names_they_were_declared_with(self) -> None:
        space = {"type": "namespace", "name": "ns", "description": "d", "tools": [{"type": "function", "name": "read"}]}
        events = frames(ANSWERS["only calls"], tools=[space])
        items = events[-1].data["response"]["output"]
        assert [(item["name"], item.get("namespace")) for item in items] == [("read", "ns"), ("list", None)]
        for event in events:
            MODELS[event.data["type"]].model_validate(event.data, strict=True)

    def test_sealed_thinking_on_request(self) -> None:
        item = whole(ANSWERS["thinking"], include=["reasoning.encrypted_content"])["output"][0]
        assert (unseal("reasoning", item["encrypted_content"]) or {})["text"] == "I greet back. 👋"

    def test_a_late_fragment_of_a_finished_call_is_dropped(self) -> None:
        events: list[OutputEvent] = [
            ToolCallStarted(0, "a", "f"),
            ToolCallDelta(0, "{}"),
            ToolCallStarted(1, "b", "g"),
            ToolCallDelta(0, " "),
            answer_events()[-1],
        ]
        assert [item["arguments"] for item in whole(events)["output"]] == ["{}", ""]

    def test_compaction_comes_first(self) -> None:
        compacted = CompactionCompleted("short", keep_from=2, keep_user=None, input_tokens_before=90, input_tokens_after=9)
        events = [CompactionStarted(90), compacted, *ANSWERS["thinking"]]
        found = frames(events)
        assert [frame.event for frame in found[2:6]] == [
            "mlx.compaction.started",
            "mlx.compaction.completed",
            "response.output_item.added",
            "response.output_item.done",
        ]
        assert (found[3].data["input_tokens_before"], found[3].data["input_tokens_after"]) == (90, 9)
        assert [item["type"] for item in found[-1].data["response"]["output"]] == ["compaction", "reasoning", "message"]
        assert [frame.data["sequence_number"] for frame in found] == list(range(len(found)))
        Response.model_validate(found[-1].data["response"], strict=True)

    def test_cancelled_before_anything_was_said(self) -> None:
        ended = Completed(FinishReason.CANCELLED, "", Usage(9), Timings())
        assert (whole([ended])["status"], whole([ended])["output"]) == ("cancelled", [])

    def test_what_was_asked_for_is_repeated(self) -> None:
        tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}]
        fields: dict[str, Any] = {
            "instructions": "i",
            "metadata": {"a": "b"},
            "tools": tools,
            "tool_choice": {"type": "function", "name": "f"},
            "previous_response_id": "resp_0",
            "reasoning": {"effort": "low", "summary": "auto"},
            "service_tier": "flex",
            "temperature": 0.5,
            "top_p": 0.25,
            "text": {"verbosity": "low"},
            "user": "u",
            "max_output_tokens": 7,
            "parallel_tool_calls": False,
            "prompt_cache_key": "k",
        }
        shown = whole(ANSWERS["text"], **fields)
        Response.model_validate(shown, strict=True)
        expected = fields | {
            "tools": [tools[0] | {"description": None}],
            "text": {"format": {"type": "text"}, "verbosity": "low"},
        }
        assert {name: shown[name] for name in expected} == expected

    def test_formats_and_conversations_are_repeated_in_their_long_form(self) -> None:
        form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True, "description": None}
        shown = whole(ANSWERS["text"], text={"format": form}, conversation="conv_1")
        assert (shown["text"]["format"], shown["conversation"]) == (form, {"id": "conv_1"})
        Response.model_validate(shown, strict=True)


class TestFailure:
    def failed(self, error: errors.MlxcelError) -> list[Frame]:
        writer = ResponseStreamWriter(builder())
        return read_frames(writer.open() + writer.on(TextDelta("Hel")) + writer.fail(error))

    def test_the_stream_ends_with_an_error_and_a_failed_response(self) -> None:
        found = self.failed(errors.GenerationFailed("the row failed"))
        assert [frame.event for frame in found[-2:]] == ["error", "response.failed"]
        assert [frame.data["sequence_number"] for frame in found] == list(range(len(found)))
        for frame in found:
            MODELS[frame.data["type"]].model_validate(frame.data, strict=True)
        response = found[-1].data["response"]
        assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
        assert (response["output"][0]["status"], response["output"][0]["content"][0]["text"]) == ("incomplete", "Hel")

    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (errors.ServerBusy(), "rate_limit_exceeded"),
            (errors.InvalidRequest("x"), "invalid_prompt"),
            (errors.InvalidRequest("x", code="context_length_exceeded"), "context_length_exceeded"),
            (errors.ContextOverflow(9, 8), "context_length_exceeded"),
            (errors.GenerationFailed("x"), "server_error"),
        ],
    )
    def test_codes(self, error: errors.MlxcelError, code: str) -> None:
        assert self.failed(error)[-1].data["response"]["error"]["code"] == code

    def test_a_stored_response_can_be_marked(self) -> None:
        body = orjson.dumps(whole(ANSWERS["text"]))
        assert orjson.loads(mark_cancelled(body)) == orjson.loads(body) | {"status": "cancelled"}

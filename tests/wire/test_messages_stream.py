"""POST /v1/messages: answers and event streams, checked with the official SDK as the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import Message as SdkMessage
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from mlxcel.core import errors
from mlxcel.core.chat import ToolCall
from mlxcel.core.events import Completed, FinishReason, OutputEvent, TextDelta, ToolCallDelta, ToolCallStarted
from mlxcel.core.usage import Usage
from mlxcel.testing.answers import answer_events
from mlxcel.testing.frames import Frame, read_frames
from mlxcel.wire.anthropic.answer import MessageStreamWriter, render, signature
from mlxcel.wire.anthropic.errors import error_body
from mlxcel.wire.context import RequestContext, ServerFacts

CONTEXT = RequestContext(ServerFacts("tiny"), request_id="abc", created_s=1.0)
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
CALLS = (ToolCall("call_1", "read", '{"path": "a.txt", "deep": {"x": [1, "}"]}}'), ToolCall("call_2", "list", "{}"))

ANSWERS = {
    "text": answer_events("Hello there."),
    "thinking": answer_events("Hi.", reasoning="I greet back. 👋"),
    "calls": answer_events("Reading.", reasoning="hm", calls=CALLS),
    "only calls": answer_events(calls=CALLS),
    "empty": answer_events(),
    "cut": answer_events("Hello th", reason=FinishReason.LENGTH),
    "cut in thought": answer_events(reasoning="I wonder", reason=FinishReason.LENGTH),
    "stopped": answer_events("Hello", reason=FinishReason.STOP_STRING, stop_string=" there"),
    "loop": answer_events("aaaa", reason=FinishReason.LOOP),
}


def stream(events: Sequence[OutputEvent], **options: Any) -> bytes:
    writer = MessageStreamWriter(CONTEXT, prompt_tokens=10, **options)
    return writer.open() + b"".join(writer.on(event) for event in events)


def frames(events: Sequence[OutputEvent], **options: Any) -> list[Frame]:
    return [frame for frame in read_frames(stream(events, **options)) if frame.event != "ping"]


def completed(events: Sequence[OutputEvent]) -> Completed:
    assert isinstance(events[-1], Completed)
    return events[-1]


def accumulated(raw: bytes) -> SdkMessage:
    """The stream as the SDK's own helper puts it together."""

    def reply(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=raw, headers={"content-type": "text/event-stream"})

    with (
        httpx2.Client(transport=httpx2.MockTransport(reply)) as http,
        anthropic.Anthropic(api_key="x", http_client=http, max_retries=0) as client,
        client.messages.stream(model="m", max_tokens=8, messages=[{"role": "user", "content": "hi"}]) as events,
    ):
        return events.get_final_message()


@pytest.mark.parametrize("name", ANSWERS)
class TestEveryAnswer:
    def test_each_event_is_valid_and_named_after_its_type(self, name: str) -> None:
        for event, data in frames(ANSWERS[name]):
            EVENT.validate_python(data, strict=True)
            assert event == data["type"]

    def test_the_order_is_anthropics(self, name: str) -> None:
        kinds = [frame.event for frame in frames(ANSWERS[name])]
        assert kinds[0] == "message_start"
        assert kinds[-2:] == ["message_delta", "message_stop"]
        open_index, next_index = None, 0
        for _, data in frames(ANSWERS[name])[1:-2]:
            if data["type"] == "content_block_start":
                assert (open_index, data["index"]) == (None, next_index)
                open_index, next_index = data["index"], next_index + 1
            else:
                assert data["index"] == open_index
                open_index = None if data["type"] == "content_block_stop" else open_index
        assert open_index is None

    def test_the_sdk_puts_together_the_message_that_is_sent_without_streaming(self, name: str) -> None:
        whole = render(completed(ANSWERS[name]), CONTEXT)
        SdkMessage.model_validate(whole, strict=True)
        streamed = accumulated(stream(ANSWERS[name]))
        dumped = streamed.model_dump(exclude={"content": {"__all__": {"parsed_output"}}}, exclude_none=True)
        assert dumped == SdkMessage.model_validate(whole).model_dump(exclude_none=True)

    def test_prompt_tokens_add_up_at_both_ends(self, name: str) -> None:
        start, delta = frames(ANSWERS[name])[0].data["message"]["usage"], frames(ANSWERS[name])[-2].data["usage"]
        assert start["input_tokens"] + start["cache_read_input_tokens"] == 10
        assert delta["input_tokens"] + delta["cache_read_input_tokens"] == 10
        assert (delta["cache_read_input_tokens"], delta["output_tokens"]) == (4, 5)


class TestGolden:
    def test_a_whole_stream(self) -> None:
        events = answer_events("Hi", reasoning="mm", calls=[ToolCall("c1", "f", '{"a":1}')], piece_chars=4)
        compact = [
            (frame.event, frame.data.get("delta") or frame.data.get("content_block")) for frame in frames(events)[1:-2]
        ]
        assert compact == [
            ("content_block_start", {"type": "thinking", "thinking": "", "signature": ""}),
            ("content_block_delta", {"type": "thinking_delta", "thinking": "mm"}),
            ("content_block_delta", {"type": "signature_delta", "signature": signature("mm")}),
            ("content_block_stop", None),
            ("content_block_start", {"type": "text", "text": "", "citations": None}),
            ("content_block_delta", {"type": "text_delta", "text": "Hi"}),
            ("content_block_stop", None),
            ("content_block_start", {"type": "tool_use", "id": "c1", "name": "f", "input": {}}),
            ("content_block_delta", {"type": "input_json_delta", "partial_json": '{"a"'}),
            ("content_block_delta", {"type": "input_json_delta", "partial_json": ":1}"}),
            ("content_block_stop", None),
        ]

    def test_the_opening_holds_a_ping_and_so_does_every_keep_alive(self) -> None:
        writer = MessageStreamWriter(CONTEXT, prompt_tokens=10)
        assert [frame.event for frame in read_frames(writer.open())] == ["message_start", "ping"]
        assert read_frames(writer.keep_alive) == [Frame("ping", {"type": "ping"})]

    @pytest.mark.parametrize(
        ("name", "reason", "matched"),
        [
            ("text", "end_turn", None),
            ("cut", "max_tokens", None),
            ("stopped", "stop_sequence", " there"),
            ("calls", "tool_use", None),
            ("loop", "end_turn", None),
        ],
    )
    def test_stop_reasons(self, name: str, reason: str, matched: str | None) -> None:
        delta = frames(ANSWERS[name])[-2].data["delta"]
        assert (delta["stop_reason"], delta["stop_sequence"]) == (reason, matched)

    def test_omitted_thinking_leaves_its_signature(self) -> None:
        kinds = [frame.data["delta"]["type"] for frame in frames(ANSWERS["thinking"], omit_thinking=True)[2:3]]
        assert kinds == ["signature_delta"]
        block = render(completed(ANSWERS["thinking"]), CONTEXT, omit_thinking=True)["content"][0]
        assert block == {"type": "thinking", "thinking": "", "signature": signature("I greet back. 👋")}

    def test_suppressed_tokens_open_no_block(self) -> None:
        assert len(frames([TextDelta(""), *answer_events()])) == 3

    def test_a_late_fragment_of_a_closed_call_does_not_break_the_order(self) -> None:
        events: list[OutputEvent] = [
            ToolCallStarted(0, "a", "f"),
            ToolCallDelta(0, "{}"),
            ToolCallStarted(1, "b", "g"),
            ToolCallDelta(0, " "),
            ToolCallDelta(1, "{}"),
            answer_events()[-1],
        ]
        deltas = [frame.data["index"] for frame in frames(events) if frame.event == "content_block_delta"]
        assert deltas == [0, 1]

    @pytest.mark.parametrize("arguments", ["[1]", '"x"', '{"a":', "nonsense", "1"])
    def test_arguments_that_are_no_object_are_wrapped(self, arguments: str) -> None:
        answer = completed(answer_events(calls=[ToolCall("c", "f", arguments)]))
        assert render(answer, CONTEXT)["content"][0]["input"] == {"INVALID_JSON": arguments}

    def test_no_arguments_are_an_empty_object(self) -> None:
        answer = completed(answer_events(calls=[ToolCall("c", "f", "")]))
        assert render(answer, CONTEXT)["content"][0]["input"] == {}

    def test_uncached_prompts_report_zero_cache(self) -> None:
        usage = render(completed(answer_events("x", usage=Usage(7, 0, 1))), CONTEXT)["usage"]
        assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (7, 0, 0)


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "word"),
        [
            (errors.InvalidRequest("x"), "invalid_request_error"),
            (errors.ContextOverflow(9, 8), "invalid_request_error"),
            (errors.NotFound("x"), "not_found_error"),
            (errors.MissingKey("x"), "authentication_error"),
            (errors.InvalidKey("x"), "authentication_error"),
            (errors.PayloadTooLarge("x"), "request_too_large"),
            (errors.ServerBusy(), "overloaded_error"),
            (errors.ModelLoading(), "overloaded_error"),
            (errors.MemoryBudgetExceeded(2, 1), "overloaded_error"),
            (errors.TimedOut("x"), "timeout_error"),
            (errors.CapabilityMissing("x"), "not_supported_error"),
            (errors.GenerationFailed("x"), "api_error"),
        ],
    )
    def test_words(self, error: errors.MlxcelError, word: str) -> None:
        body = error_body(error)
        assert (body["type"], body["error"]["type"]) == ("error", word)

    def test_an_overflow_says_what_agents_look_for(self) -> None:
        message = error_body(errors.ContextOverflow(9000, 8192))["error"]["message"]
        assert message.startswith("prompt is too long: 9000 tokens > 8192 maximum")

    def test_the_sdk_raises_an_error_that_comes_mid_stream(self) -> None:
        writer = MessageStreamWriter(CONTEXT, prompt_tokens=10)
        raw = writer.open() + writer.on(TextDelta("Hel")) + writer.fail(errors.GenerationFailed("the row failed"))
        with pytest.raises(anthropic.APIStatusError, match="the row failed"):
            accumulated(raw)

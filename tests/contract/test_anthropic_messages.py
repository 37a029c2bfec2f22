"""The official Anthropic client against /v1/messages, over a real socket, with strict response validation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest

from mlxcel.config.conversation import TemplateConfig
from mlxcel.config.network import NetworkConfig
from mlxcel.config.server import ServerConfig
from mlxcel.testing.app import LiveServer, scripted_source
from mlxcel.testing.frames import read_frames

Live = Callable[..., LiveServer]
ANSWER = "The river runs past the old mill."
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
WEATHER: Any = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


class Script:
    """Says one thing and keeps the prompts it was given."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return self.answer


def client_of(server: LiveServer, key: str = "unused") -> anthropic.Anthropic:
    return server.hold(
        anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, _strict_response_validation=True)
    )


@pytest.fixture
def server(live: Live, tmp_path: Path) -> LiveServer:
    return live(scripted_source(ANSWER, tmp_path))


@pytest.fixture
def thinker(live: Live, tmp_path: Path) -> tuple[LiveServer, Script]:
    script = Script(f"<think>\nI greet back.\n</think>\n\n{ANSWER}")
    return live(scripted_source(script, tmp_path)), script


def test_a_whole_answer_validates(server: LiveServer) -> None:
    answer = client_of(server).messages.create(model="claude-any", max_tokens=100, messages=HELLO)
    assert [block.type for block in answer.content] == ["text"]
    assert answer.content[0].text == ANSWER  # type: ignore[union-attr]
    assert (answer.stop_reason, answer.stop_sequence, answer.role) == ("end_turn", None, "assistant")
    assert answer.id.startswith("msg_")
    assert answer.usage.input_tokens > 0
    assert answer.usage.output_tokens > 0


def test_a_stream_equals_the_whole_answer(server: LiveServer) -> None:
    with client_of(server).messages.stream(model="m", max_tokens=100, messages=HELLO) as stream:
        assert "".join(stream.text_stream) == ANSWER
        answer = stream.get_final_message()
    whole = client_of(server).messages.create(model="m", max_tokens=100, messages=HELLO)
    assert (answer.stop_reason, answer.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


def test_counting_agrees_with_what_is_billed_cached_or_not(server: LiveServer) -> None:
    client = client_of(server)
    question: list[Any] = [{"role": "user", "content": "Count me. " * 300}]
    counted = client.messages.count_tokens(model="m", messages=question, system="Be brief.", tools=[WEATHER]).input_tokens
    reads = []
    for _ in range(2):
        usage = client.messages.create(model="m", max_tokens=5, messages=question, system="Be brief.", tools=[WEATHER]).usage
        reads.append(usage.cache_read_input_tokens or 0)
        assert usage.input_tokens + reads[-1] == counted
    assert reads[0] == 0
    assert reads[1] > counted * 0.8
    with client.messages.stream(model="m", max_tokens=5, messages=question, system="Be brief.", tools=[WEATHER]) as stream:
        events: list[Any] = list(stream)
    usages = {"message_start": events[0].message.usage}
    usages |= {event.type: event.usage for event in events if event.type == "message_delta"}
    sums = {kind: usage.input_tokens + (usage.cache_read_input_tokens or 0) for kind, usage in usages.items()}
    assert sums == {"message_start": counted, "message_delta": counted}


def test_the_billing_line_does_not_defeat_the_cache(server: LiveServer) -> None:
    reads = []
    for build in ("5f1a", "77bc"):
        line = f"x-anthropic-billing-header: cc_version=2.1.{build}; cch={build};"
        usage = (
            client_of(server)
            .messages.create(
                model="m",
                max_tokens=5,
                system=[{"type": "text", "text": line}, {"type": "text", "text": "You are an agent. " * 60}],
                messages=HELLO,
            )
            .usage
        )
        reads.append((usage.cache_read_input_tokens or 0, usage.input_tokens))
    assert reads[0][0] == 0
    assert reads[1][0] > reads[1][1]


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_is_a_block_of_its_own(thinker: tuple[LiveServer, Script], stream: bool) -> None:
    server, _ = thinker
    asked: Any = {
        "model": "m",
        "max_tokens": 2000,
        "messages": HELLO,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    if stream:
        with client_of(server).messages.stream(**asked) as events:
            answer: Any = events.get_final_message()
    else:
        answer = client_of(server).messages.create(**asked)
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert answer.content[0].thinking.strip() == "I greet back."
    assert answer.content[0].signature
    assert answer.content[1].text == ANSWER
    assert answer.usage.output_tokens_details.thinking_tokens > 0


def test_thinking_that_the_client_dropped_is_put_back(live: Live, tmp_path: Path) -> None:
    script = Script(f"<think>\nI greet back.\n</think>\n\n{ANSWER}")
    config = ServerConfig(template=TemplateConfig(template_kwargs={"preserve_thinking": True}))
    server = live(scripted_source(script, tmp_path), config)
    more: list[Any] = [*HELLO, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "more"}]
    on: Any = {"type": "enabled", "budget_tokens": 1024}

    def prompt(messages: list[Any], thinking: Any, **fields: Any) -> str:
        client_of(server).messages.create(
            model="m", max_tokens=2000, messages=messages, thinking=thinking, extra_body=fields
        )
        return script.prompts[-1]

    assert "I greet back." not in prompt(more, on)
    prompt(HELLO, on)
    assert "I greet back." in prompt(more, on)
    assert "I greet back." not in prompt(more, {"type": "disabled"})
    assert "I greet back." not in prompt(more, on, cache_prompt=False)
    own = [*HELLO, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Mine.", "signature": "s"},
                                                     {"type": "text", "text": ANSWER}]}, more[-1]]  # fmt: skip
    assert "Mine." in prompt(own, on)
    assert "I greet back." not in script.prompts[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_and_its_result(live: Live, tmp_path: Path, stream: bool) -> None:
    script = Script(f"Looking.\n{CALL}")
    server = live(scripted_source(script, tmp_path))
    asked: Any = {"model": "m", "max_tokens": 200, "messages": HELLO, "tools": [WEATHER]}
    if stream:
        with client_of(server).messages.stream(**asked) as events:
            answer: Any = events.get_final_message()
    else:
        answer = client_of(server).messages.create(**asked)
    assert answer.stop_reason == "tool_use"
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    turn = {"role": "assistant", "content": [block.model_dump(exclude={"parsed_output"}) for block in answer.content]}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "warm and clear"}]}
    script.answer = ANSWER
    final = client_of(server).messages.create(**asked | {"messages": [*HELLO, turn, {"role": "user", "content": [result]}]})
    assert final.stop_reason == "end_turn"
    assert "<tool_response>\nwarm and clear\n</tool_response>" in script.prompts[-1]
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}' in script.prompts[-1]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_forced_tools_are_called(server: LiveServer, choice: Any) -> None:
    """The scripted model wants to chat; only the grammar makes it call."""
    asked: Any = {"max_tokens": 400, "tools": [WEATHER], "tool_choice": choice, "thinking": {"type": "disabled"}}
    answer = client_of(server).messages.create(model="m", messages=HELLO, **asked)
    assert {(block.type, getattr(block, "name", "")) for block in answer.content} == {("tool_use", "get_weather")}


def test_no_tool_is_rendered_under_choice_none(live: Live, tmp_path: Path) -> None:
    script = Script(ANSWER)
    server = live(scripted_source(script, tmp_path))
    client_of(server).messages.create(model="m", max_tokens=9, messages=HELLO, tools=[WEATHER], tool_choice={"type": "none"})
    assert "get_weather" not in script.prompts[-1]


def test_forced_choices_without_their_tool_are_refused(server: LiveServer) -> None:
    cases: list[Any] = [{"tools": [], "tool_choice": {"type": "any"}}]
    cases.append({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}})
    for case in cases:
        with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
            client_of(server).messages.create(model="m", max_tokens=9, messages=HELLO, **case)


def test_server_tools_are_dropped_and_named(server: LiveServer) -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search"}, {"name": "x\r\nSet-Cookie: a=b"}, WEATHER]
    body = {"model": "m", "max_tokens": 5, "messages": HELLO, "tools": tools}
    reply = httpx2.post(server.url + "/v1/messages", json=body)
    assert reply.status_code == 200
    assert reply.headers["x-mlxcel-ignored"] == "web_search, x??Set-Cookie:?a?b"
    assert "set-cookie" not in reply.headers


def test_a_stop_sequence_is_reported_and_left_out(server: LiveServer) -> None:
    answer = client_of(server).messages.create(
        model="m", max_tokens=100, messages=HELLO, stop_sequences=["nowhere", "s past t"]
    )
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "s past t")
    assert answer.content[0].text == "The river run"  # type: ignore[union-attr]


def test_a_stop_sequence_matches_inside_thinking(thinker: tuple[LiveServer, Script]) -> None:
    answer = client_of(thinker[0]).messages.create(model="m", max_tokens=100, messages=HELLO, stop_sequences=["greet"])
    assert answer.stop_reason == "stop_sequence"
    assert [block.type for block in answer.content] == ["thinking"]


def test_the_token_limit(server: LiveServer) -> None:
    answer = client_of(server).messages.create(model="m", max_tokens=3, messages=HELLO)
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 3)


def test_images_are_refused_by_a_text_model_before_anything_is_fetched(server: LiveServer) -> None:
    image: Any = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:9/none.png"}}
    result: Any = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    for content in ([image], [result]):
        with pytest.raises(anthropic.APIStatusError) as caught:
            client_of(server).messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": content}])
        assert caught.value.status_code == 501
        assert caught.value.body == {
            "type": "error",
            "error": {"type": "not_supported_error", "message": caught.value.body["error"]["message"]},  # type: ignore[index]
        }


@pytest.mark.parametrize("stream", [False, True])
def test_an_overflow_says_what_agents_compact_on(server: LiveServer, stream: bool) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 8192 maximum"):
        client_of(server).messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "mill " * 9000}], stream=stream
        )


class TestKeys:
    @pytest.fixture
    def guarded(self, live: Live, tmp_path: Path) -> LiveServer:
        return live(scripted_source(ANSWER, tmp_path), ServerConfig(network=NetworkConfig(api_keys=("sk-right",))))

    def test_the_sdks_header_is_accepted_here(self, guarded: LiveServer) -> None:
        client_of(guarded, "sk-right").messages.create(model="m", max_tokens=5, messages=HELLO)
        client_of(guarded, "sk-right").messages.count_tokens(model="m", messages=HELLO)

    def test_a_wrong_key_is_an_anthropic_error(self, guarded: LiveServer) -> None:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            client_of(guarded, "sk-wrong").messages.create(model="m", max_tokens=5, messages=HELLO)
        assert caught.value.type == "authentication_error"

    def test_it_is_not_accepted_elsewhere(self, guarded: LiveServer) -> None:
        reply = httpx2.get(guarded.url + "/v1/models", headers={"x-api-key": "sk-right"})
        assert reply.status_code == 401


@pytest.mark.parametrize("path", ["/messages", "/v1/messages?beta=true"])
def test_other_spellings_of_the_path(server: LiveServer, path: str) -> None:
    body = {"model": "m", "max_tokens": 5, "messages": HELLO}
    assert httpx2.post(server.url + path, json=body).status_code == 200
    counted = httpx2.post(server.url + path.replace("messages", "messages/count_tokens"), json=body)
    assert list(counted.json()) == ["input_tokens"]


def test_pings_come_during_a_long_prefill(live: Live, tmp_path: Path) -> None:
    config = ServerConfig(network=NetworkConfig(sse_ping_interval_s=0.1))
    server = live(scripted_source(ANSWER, tmp_path, step_s=0.02, prefill_token_s=0.02), config)
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi " * 20}], "stream": True}
    raw = httpx2.post(server.url + "/v1/messages", json=body, timeout=30).content
    kinds = [frame.event for frame in read_frames(raw)]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds.index("content_block_start") > 3


def test_a_row_that_fails_ends_the_stream_with_an_error_event(live: Live, tmp_path: Path) -> None:
    def say(prompt: str) -> list[int | Exception]:
        return [65, 66, RuntimeError("secret detail")]

    server = live(scripted_source(say, tmp_path))
    with (
        pytest.raises(anthropic.APIStatusError) as caught,
        client_of(server).messages.stream(model="m", max_tokens=9, messages=HELLO) as stream,
    ):
        stream.until_done()
    assert "secret" not in str(caught.value)
    with pytest.raises(anthropic.InternalServerError):
        client_of(server).messages.create(model="m", max_tokens=9, messages=HELLO)

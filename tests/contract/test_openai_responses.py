"""The official OpenAI client against /v1/responses, over a real socket, with strict response validation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from mlxcel.config.network import NetworkConfig
from mlxcel.config.server import ServerConfig
from mlxcel.config.stores import StoresConfig
from mlxcel.testing.app import LiveServer, scripted_source
from mlxcel.testing.frames import read_frames

Live = Callable[..., LiveServer]
ANSWER = "The river runs past the old mill."
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


class Script:
    """Says one thing and keeps the prompts it was given."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return self.answer


def client_of(server: LiveServer, key: str = "unused") -> openai.OpenAI:
    return server.hold(
        openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, _strict_response_validation=True)
    )


def answer_of(server: LiveServer, stream: bool, **fields: Any) -> Any:
    """The final response, streamed or not."""
    client = client_of(server)
    if not stream:
        return client.responses.create(model="any", **fields)
    with client.responses.stream(model="any", **fields) as events:
        return events.get_final_response()


@pytest.fixture
def server(live: Live, tmp_path: Path) -> LiveServer:
    return live(scripted_source(ANSWER, tmp_path))


@pytest.fixture
def scripted(live: Live, tmp_path: Path) -> tuple[LiveServer, Script]:
    script = Script(ANSWER)
    return live(scripted_source(script, tmp_path)), script


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer(server: LiveServer, stream: bool) -> None:
    response = answer_of(server, stream, input="Hello", instructions="Be brief.")
    assert response.output_text == ANSWER
    assert (response.status, response.model) == ("completed", "scripted")
    assert response.id.startswith("resp_")
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_is_an_item_ahead_of_the_message(live: Live, tmp_path: Path, stream: bool) -> None:
    server = live(scripted_source(f"<think>\nI greet back.\n</think>\n\n{ANSWER}", tmp_path))
    response = answer_of(server, stream, input="Hello")
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].content[0].text.strip() == "I greet back."
    assert response.output_text == ANSWER
    assert response.usage.output_tokens_details.reasoning_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_and_its_output(scripted: tuple[LiveServer, Script], stream: bool) -> None:
    server, script = scripted
    script.answer = f"Looking.\n{CALL}"
    first = answer_of(server, stream, input="Weather?", tools=[WEATHER])
    call = first.output[-1]
    assert (call.type, call.name, call.arguments) == ("function_call", "get_weather", '{"city": "Paris"}')
    assert call.id.startswith("fc_")
    assert call.call_id.startswith("call_")
    script.answer = ANSWER
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "warm and clear"}
    chained = answer_of(server, stream, input=[output], tools=[WEATHER], previous_response_id=first.id)
    by_chain = script.prompts[-1]
    replay = [{"role": "user", "content": "Weather?"}, *[item.to_dict() for item in first.output], output]
    answer_of(server, stream, input=replay, tools=[WEATHER])
    assert chained.output_text == ANSWER
    assert by_chain == script.prompts[-1]
    assert "<tool_response>\nwarm and clear\n</tool_response>" in by_chain


def test_instructions_are_never_inherited(scripted: tuple[LiveServer, Script]) -> None:
    server, script = scripted
    first = answer_of(server, False, input="one", instructions="Speak like a pirate.")
    second = answer_of(server, False, input="two", previous_response_id=first.id)
    answer_of(server, False, input="three", previous_response_id=second.id)
    assert "pirate" in script.prompts[0]
    assert "pirate" not in script.prompts[1] + script.prompts[2]
    assert [text in script.prompts[2] for text in ("one", "two", "three", ANSWER)] == [True] * 4


class TestStored:
    def test_retrieve_and_delete(self, server: LiveServer) -> None:
        client = client_of(server)
        made = client.responses.create(model="any", input="Hello", metadata={"a": "b"})
        assert client.responses.retrieve(made.id) == made
        client.responses.delete(made.id)
        for request in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError) as caught:
                request(made.id)
            assert (caught.value.type, caught.value.param) == ("invalid_request_error", "id")

    def test_a_chain_survives_the_deletion_of_its_links(self, scripted: tuple[LiveServer, Script]) -> None:
        server, script = scripted
        first = answer_of(server, False, input="one")
        second = answer_of(server, False, input="two", previous_response_id=first.id)
        client_of(server).responses.delete(first.id)
        answer_of(server, False, input="three", previous_response_id=second.id)
        assert "one" in script.prompts[-1]

    def test_a_stream_is_stored_when_its_last_event_arrives(self, server: LiveServer) -> None:
        client = client_of(server)
        for event in client.responses.create(model="any", input="Hello", stream=True):
            if event.type == "response.completed":
                assert client.responses.retrieve(event.response.id).output_text == ANSWER

    def test_store_false_keeps_nothing(self, server: LiveServer) -> None:
        made = client_of(server).responses.create(model="any", input="Hello", store=False)
        with pytest.raises(openai.NotFoundError):
            client_of(server).responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError) as caught:
            client_of(server).responses.create(model="any", input="more", previous_response_id=made.id)
        assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")

    def test_a_completed_response_can_be_marked_cancelled(self, server: LiveServer) -> None:
        client = client_of(server)
        made = client.responses.create(model="any", input="Hello")
        assert client.responses.cancel(made.id).status == "cancelled"
        assert client.responses.retrieve(made.id).status == "cancelled"

    def test_references_name_stored_items(self, scripted: tuple[LiveServer, Script]) -> None:
        server, script = scripted
        made = answer_of(server, False, input="one")
        reference = {"type": "item_reference", "id": made.output[0].id}
        answer_of(server, False, input=[{"role": "user", "content": "one"}, reference, {"role": "user", "content": "two"}])
        assert ANSWER in script.prompts[-1]

    def test_keys_do_not_see_each_others(self, live: Live, tmp_path: Path) -> None:
        server = live(scripted_source(ANSWER, tmp_path), ServerConfig(network=NetworkConfig(api_keys=("sk-a", "sk-b"))))
        alice, bob = client_of(server, "sk-a"), client_of(server, "sk-b")
        made = alice.responses.create(model="any", input="Hello", conversation="conv_1")
        with pytest.raises(openai.NotFoundError):
            bob.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            bob.responses.delete(made.id)
        with pytest.raises(openai.BadRequestError):
            bob.responses.create(model="any", input="x", previous_response_id=made.id)
        tokens = [
            client.responses.input_tokens.count(model="any", input="x", conversation="conv_1").input_tokens
            for client in (alice, bob)
        ]
        assert tokens[0] > tokens[1]
        assert alice.responses.retrieve(made.id) == made


class TestSwitchedOff:
    @pytest.fixture
    def off(self, live: Live, tmp_path: Path) -> LiveServer:
        stores = StoresConfig(responses_max_entries=0, conversations_max_entries=0)
        return live(scripted_source(ANSWER, tmp_path), ServerConfig(stores=stores))

    def test_answers_still_come(self, off: LiveServer) -> None:
        assert answer_of(off, True, input="Hello").output_text == ANSWER

    def test_whatever_needs_the_store_is_refused(self, off: LiveServer) -> None:
        client = client_of(off)
        for request in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.BadRequestError):
                request("resp_1")
        for field in ("previous_response_id", "conversation"):
            with pytest.raises(openai.BadRequestError) as caught:
                client.responses.create(model="any", input="x", **{field: "id_1"})  # type: ignore[call-overload]
            assert caught.value.param == field

    def test_zero_bytes_drop_each_response_at_once(self, live: Live, tmp_path: Path) -> None:
        stores = StoresConfig(responses_max_bytes=0)
        server = live(scripted_source(ANSWER, tmp_path), ServerConfig(stores=stores))
        made = client_of(server).responses.create(model="any", input="Hello")
        with pytest.raises(openai.NotFoundError):
            client_of(server).responses.retrieve(made.id)


class TestConversations:
    @pytest.mark.parametrize("stream", [False, True])
    def test_turns_add_up_in_both_spellings(self, scripted: tuple[LiveServer, Script], stream: bool) -> None:
        server, script = scripted
        answer_of(server, stream, input="one", conversation="conv_1")
        response = answer_of(server, stream, input="two", conversation={"id": "conv_1"})
        assert response.conversation.id == "conv_1"
        assert [text in script.prompts[-1] for text in ("one", ANSWER, "two")] == [True] * 3
        answer_of(server, stream, input="else", conversation="conv_2")
        assert "one" not in script.prompts[-1]

    def test_counting_adds_nothing(self, server: LiveServer) -> None:
        client = client_of(server)
        counts = [
            client.responses.input_tokens.count(model="any", input="one", conversation="conv_1").input_tokens
            for _ in range(2)
        ]
        assert counts[0] == counts[1]

    def test_with_a_previous_response_it_is_refused(self, server: LiveServer) -> None:
        with pytest.raises(openai.BadRequestError):
            answer_of(server, False, input="x", conversation="c", previous_response_id="r")


def test_input_tokens_are_those_of_the_answer(server: LiveServer) -> None:
    fields: Any = {"input": "Count me. " * 50, "instructions": "Be brief.", "tools": [WEATHER]}
    counted = client_of(server).responses.input_tokens.count(model="any", **fields).input_tokens
    for stream in (False, True):
        usage = answer_of(server, stream, **fields).usage
        assert usage.input_tokens == counted
        assert (usage.input_tokens_details.cached_tokens > 0) == stream  # the second time


def test_the_token_limit_leaves_the_response_incomplete(server: LiveServer) -> None:
    response = client_of(server).responses.create(model="any", input="Hello", max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    events = list(client_of(server).responses.create(model="any", input="Hello", max_output_tokens=3, stream=True))
    assert events[-1].type == "response.incomplete"


def test_logprobs_come_one_a_token(server: LiveServer) -> None:
    response = client_of(server).responses.create(
        model="any", input="Hello", top_logprobs=2, include=["message.output_text.logprobs"]
    )
    message: Any = response.output[0]
    logprobs = message.content[0].logprobs
    assert "".join(entry.token for entry in logprobs) == ANSWER
    assert {len(entry.top_logprobs) for entry in logprobs} == {2}


class TestBuiltInTools:
    tools: Any = [WEATHER, {"type": "web_search"}]  # noqa: RUF012

    def test_strict_mode_refuses_them(self, server: LiveServer) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            client_of(server).responses.create(model="any", input="Hello", tools=self.tools)
        assert (caught.value.type, caught.value.param) == ("invalid_request_error", "tools[1].type")

    @pytest.mark.parametrize("stream", [False, True])
    def test_lenient_mode_leaves_them_out_and_says_so(self, live: Live, tmp_path: Path, stream: bool) -> None:
        server = live(scripted_source(ANSWER, tmp_path), ServerConfig(network=NetworkConfig(compat="lenient")))
        body = {"model": "any", "input": "Hello", "tools": self.tools, "stream": stream}
        reply = httpx2.post(server.url + "/v1/responses", json=body)
        assert (reply.status_code, reply.headers["x-mlxcel-ignored"]) == (200, "web_search")

    def test_namespaces_work_in_strict_mode(self, live: Live, tmp_path: Path) -> None:
        space: Any = {"type": "namespace", "name": "mcp__w", "description": "d", "tools": [WEATHER]}
        server = live(scripted_source(CALL, tmp_path))
        (call,) = client_of(server).responses.create(model="any", input="Weather?", tools=[space]).output
        assert (call.name, call.namespace) == ("get_weather", "mcp__w")  # type: ignore[union-attr]


@pytest.mark.parametrize("stream", [False, True])
def test_refusals_come_before_the_stream(server: LiveServer, stream: bool) -> None:
    image = {"type": "input_image", "image_url": "http://127.0.0.1:9/none.png", "detail": "auto"}
    cases: list[tuple[int, dict[str, Any]]] = [
        (400, {"input": ""}),
        (400, {"input": "x", "background": True}),
        (400, {"input": "x", "tool_choice": "required"}),
        (400, {"input": "mill " * 9000}),
        (501, {"input": [{"role": "user", "content": [image]}]}),
        (501, {"input": [{"type": "function_call_output", "call_id": "c", "output": [image]}]}),
    ]
    for status, fields in cases:
        reply = httpx2.post(server.url + "/v1/responses", json={"model": "any", "stream": stream} | fields)
        assert reply.status_code == status
        assert reply.json()["error"]["message"]


def test_an_overflow_has_its_code_and_both_counts(server: LiveServer) -> None:
    with pytest.raises(openai.BadRequestError, match=r"\d{4,} prompt tokens.* 8192 tokens") as caught:
        client_of(server).responses.create(model="any", input="mill " * 9000)
    assert caught.value.code == "context_length_exceeded"


def test_a_row_that_fails_ends_the_stream_with_a_failed_response(live: Live, tmp_path: Path) -> None:
    def say(prompt: str) -> list[int | Exception]:
        return [65, 66, RuntimeError("secret detail")]

    server = live(scripted_source(say, tmp_path))
    raw = httpx2.post(server.url + "/v1/responses", json={"model": "m", "input": "Hi", "stream": True}).content
    assert [frame.event for frame in read_frames(raw)][-2:] == ["error", "response.failed"]
    assert b"secret" not in raw
    with pytest.raises(openai.InternalServerError):
        client_of(server).responses.create(model="any", input="Hi")


def test_a_running_stream_can_be_seen_and_cancelled(live: Live, tmp_path: Path) -> None:
    server = live(scripted_source("word " * 2000, tmp_path, step_s=0.01))
    client = client_of(server)
    seen: Any = None
    last_response: Any = None
    kinds: list[str] = []
    for event in client.responses.create(model="any", input="Hi", stream=True):
        kinds.append(event.type)
        if event.type == "response.output_text.delta" and seen is None:
            seen = client.responses.retrieve(last_response.id)
            assert client.responses.cancel(last_response.id).status == "cancelled"
        last_response = getattr(event, "response", None) or last_response
    assert seen.status == "in_progress"
    assert kinds[-1] == "response.incomplete"
    assert last_response.status == "cancelled"
    assert client.responses.retrieve(last_response.id).status == "cancelled"
    assert len(kinds) < 1500


@pytest.mark.parametrize("path", ["/responses", "/v1/responses"])
def test_every_route_has_a_short_spelling(server: LiveServer, path: str) -> None:
    made = httpx2.post(server.url + path, json={"model": "m", "input": "Hi"}).json()
    assert httpx2.get(f"{server.url}{path}/{made['id']}").json() == made
    assert httpx2.post(f"{server.url}{path}/{made['id']}/cancel").json()["status"] == "cancelled"
    deleted = httpx2.delete(f"{server.url}{path}/{made['id']}").json()
    assert deleted == {"id": made["id"], "object": "response", "deleted": True}
    counted = httpx2.post(f"{server.url}{path}/input_tokens", json={"model": "m", "input": "Hi"}).json()
    assert counted == {"object": "response.input_tokens", "input_tokens": made["usage"]["input_tokens"]}

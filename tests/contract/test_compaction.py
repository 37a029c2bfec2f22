"""Compaction of long histories: the stand-alone call, and ahead of an answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types.responses import Response, ResponseCompactionItem

from mlxcel.config.server import ServerConfig
from mlxcel.testing.app import LiveServer, scripted_source
from mlxcel.testing.frames import Frame, read_frames
from mlxcel.wire.openai.responses.history import SUMMARY_HEAD

Live = Callable[..., LiveServer]
ANSWER = "The river runs past the old mill."
SUMMARY = "They talked about the mill."
FILLER = "the stones are still and the children swim there. " * 6


class Script:
    """Writes the summary when asked for one, else the answer; keeps the prompts."""

    def __init__(self) -> None:
        self.summary = SUMMARY
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return self.summary if "<conversation>" in prompt else ANSWER


@pytest.fixture
def scripted(live: Live, tmp_path: Path) -> tuple[LiveServer, Script]:
    script = Script()
    return live(scripted_source(script, tmp_path), ServerConfig()), script


def turns(count: int) -> list[dict[str, Any]]:
    """Questions and answers, numbered."""
    return [
        {"role": role, "content": f"{role} {number}: {FILLER}"} for number in range(count) for role in ("user", "assistant")
    ]


def compact(server: LiveServer, items: Any, **fields: Any) -> httpx2.Response:
    return httpx2.post(server.url + "/v1/responses/compact", json={"model": "m", "input": items} | fields)


def create(server: LiveServer, **fields: Any) -> httpx2.Response:
    return httpx2.post(server.url + "/v1/responses", json={"model": "m"} | fields)


def frames_of(server: LiveServer, **fields: Any) -> list[Frame]:
    return read_frames(create(server, stream=True, **fields).content)


def asking(threshold: int) -> list[dict[str, Any]]:
    return [{"type": "compaction", "compact_threshold": threshold}]


def refused(reply: httpx2.Response) -> dict[str, Any]:
    assert reply.status_code == 400
    error: dict[str, Any] = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error


class TestStandAlone:
    def test_what_is_kept_and_what_becomes_a_summary(self, scripted: tuple[LiveServer, Script]) -> None:
        server, script = scripted
        items = [{"role": "developer", "content": "Be kind."}, *turns(5), {"role": "user", "content": "latest"}]
        body = compact(server, items, keep_tokens=300).json()
        assert (body["object"], body["model"]) == ("response.compaction", "scripted")
        shown = [
            (item["type"], item.get("role"), (item.get("content") or [{}])[0].get("text", "")[:11])
            for item in body["output"]
        ]
        assert shown[0] == ("message", "developer", "Be kind.")
        assert shown[-2:] == [("message", "user", "latest"), ("compaction", None, "")]
        kept = [text for _, _, text in shown[1:-2]]
        assert kept == ["user 3: the", "assistant 3", "user 4: the", "assistant 4"][-len(kept) :]
        assert len(kept) in (2, 4)
        ResponseCompactionItem.model_validate(body["output"][-1], strict=True)
        transcript = script.prompts[-1]
        assert "user 0" in transcript
        assert "latest" not in transcript
        assert "Be kind." not in transcript
        assert body["usage"]["output_tokens"] > 0

    def test_the_official_client_reads_it(self, scripted: tuple[LiveServer, Script]) -> None:
        server = scripted[0]
        client = server.hold(openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0))
        history: Any = turns(8)
        compacted = client.responses.compact(model="m", input=history)
        assert compacted.output[-1].type == "compaction"
        # As OpenAI's own, the output holds user messages, of which the client's output types know nothing.
        sent_back: Any = [item.model_dump(exclude_unset=True, warnings=False) for item in compacted.output]
        again = client.responses.create(model="m", input=[*sent_back, {"role": "user", "content": "go on"}])
        assert again.output_text == ANSWER

    def test_sent_back_it_stands_for_the_whole_history(self, scripted: tuple[LiveServer, Script]) -> None:
        server, script = scripted
        output = compact(server, [*turns(5), {"role": "user", "content": "latest"}], keep_tokens=1).json()["output"]
        for history in (output, output[-1:]):
            create(server, input=[*history, {"role": "user", "content": "go on"}])
            prompt = script.prompts[-1]
            assert prompt.count(SUMMARY_HEAD + SUMMARY) == 1
            assert prompt.count("latest") == 1
            assert "user 4" not in prompt
            counted = httpx2.post(
                server.url + "/v1/responses/input_tokens",
                json={"model": "m", "input": [*history, {"role": "user", "content": "go on"}]},
            ).json()["input_tokens"]
            assert counted < 200

    def test_a_second_compaction_covers_the_first(self, scripted: tuple[LiveServer, Script]) -> None:
        server, script = scripted
        first = compact(server, turns(5), keep_tokens=1).json()["output"]
        script.summary = "All of it."
        second = compact(server, [*first, *turns(3)], keep_tokens=1).json()["output"]
        assert SUMMARY in script.prompts[-1]
        create(server, input=second)
        assert SUMMARY_HEAD + "All of it." in script.prompts[-1]
        assert SUMMARY not in script.prompts[-1]

    def test_calls_stay_with_their_outputs(self, scripted: tuple[LiveServer, Script]) -> None:
        server, _ = scripted
        items: list[dict[str, Any]] = [{"role": "user", "content": "do it"}]
        for number in range(6):
            items.append({"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"})
            items.append({"type": "function_call_output", "call_id": f"c{number}", "output": FILLER})
        for keep_tokens in (1, 100, 200, 400):
            output = compact(server, items, keep_tokens=keep_tokens).json()["output"]
            assert output[0]["content"][0]["text"] == "do it"
            calls = [item["call_id"] for item in output if item["type"] == "function_call"]
            assert calls == [item["call_id"] for item in output if item["type"] == "function_call_output"]
            assert calls == [f"c{number}" for number in range(6)][6 - len(calls) :]

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"stream": True}, "stream"),
            ({"previous_response_id": "resp_1"}, "previous_response_id"),
            ({"conversation": "conv_1"}, "conversation"),
            ({"keep_tokens": 0}, "keep_tokens"),
            ({"max_output_tokens": 0}, "max_output_tokens"),
            ({"max_output_tokens": 16385}, "max_output_tokens"),
        ],
    )
    def test_fields_that_it_lacks(self, scripted: tuple[LiveServer, Script], fields: dict[str, Any], param: str) -> None:
        assert refused(compact(scripted[0], turns(5), **fields))["param"] == param

    def test_nothing_to_summarise(self, scripted: tuple[LiveServer, Script]) -> None:
        for items in ("hello", [{"role": "user", "content": "hello"}], turns(2)):
            assert refused(compact(scripted[0], items))["code"] == "context_length_exceeded"

    def test_a_summary_that_does_not_fit(self, scripted: tuple[LiveServer, Script]) -> None:
        error = refused(compact(scripted[0], turns(5), keep_tokens=1, max_output_tokens=2))
        assert error["code"] == "context_length_exceeded"

    def test_a_result_that_is_not_shorter(self, scripted: tuple[LiveServer, Script]) -> None:
        server, script = scripted
        script.summary = FILLER * 4
        error = refused(compact(server, turns(1) + turns(1), keep_tokens=150, max_output_tokens=16000))
        assert error["code"] == "context_length_exceeded"

    def test_a_history_longer_than_the_window(self, scripted: tuple[LiveServer, Script]) -> None:
        reply = compact(scripted[0], turns(90))
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "context_length_exceeded"

    def test_nothing_is_stored(self, scripted: tuple[LiveServer, Script]) -> None:
        body = compact(scripted[0], turns(5), keep_tokens=1).json()
        assert httpx2.get(f"{scripted[0].url}/v1/responses/{body['id']}").status_code == 404


class TestAheadOfAnAnswer:
    def history(self) -> list[dict[str, Any]]:
        return [*turns(12), {"role": "user", "content": "latest"}]

    def test_below_the_threshold_nothing_happens(self, scripted: tuple[LiveServer, Script]) -> None:
        body = create(scripted[0], input=self.history(), context_management=asking(8000)).json()
        assert [item["type"] for item in body["output"]] == ["message"]

    @pytest.mark.parametrize("stream", [False, True])
    def test_at_the_threshold_the_output_starts_with_the_compaction(
        self, scripted: tuple[LiveServer, Script], stream: bool
    ) -> None:
        server, script = scripted
        fields: dict[str, Any] = {"input": self.history(), "context_management": asking(600)}
        response = frames_of(server, **fields)[-1].data["response"] if stream else create(server, **fields).json()
        Response.model_validate(response, strict=True)
        assert [item["type"] for item in response["output"]] == ["compaction", "message"]
        assert response["output_text"] == ANSWER
        assert SUMMARY_HEAD + SUMMARY in script.prompts[-1]
        assert "user 0" not in script.prompts[-1]
        assert "latest" in script.prompts[-1]

    def test_the_stream_tells_of_it(self, scripted: tuple[LiveServer, Script]) -> None:
        server, _ = scripted
        before = httpx2.post(server.url + "/v1/responses/input_tokens", json={"model": "m", "input": self.history()}).json()[
            "input_tokens"
        ]
        found = frames_of(server, input=self.history(), context_management=asking(600))
        assert [frame.event for frame in found[:6]] == [
            "response.created",
            "response.in_progress",
            "mlx.compaction.started",
            "mlx.compaction.completed",
            "response.output_item.added",
            "response.output_item.done",
        ]
        completed = found[3].data
        assert completed["input_tokens_before"] == before
        assert completed["input_tokens_after"] == found[-1].data["response"]["usage"]["input_tokens"]
        assert completed["input_tokens_after"] < before
        numbers = [frame.data["sequence_number"] for frame in found]
        assert numbers == list(range(len(found)))

    @pytest.mark.parametrize("field", ["previous_response_id", "conversation"])
    def test_chains_go_on_from_it(self, scripted: tuple[LiveServer, Script], field: str) -> None:
        server, script = scripted
        first = create(
            server,
            input=[{"role": "system", "content": "Be kind."}, *self.history()],
            context_management=asking(600),
            **({"conversation": "conv_1"} if field == "conversation" else {}),
        ).json()
        create(server, input="and now", **{field: "conv_1" if field == "conversation" else first["id"]})
        prompt = script.prompts[-1]
        assert [text in prompt for text in ("Be kind.", SUMMARY_HEAD + SUMMARY, "latest", ANSWER, "and now")] == [True] * 5
        assert "user 0" not in prompt

    def test_a_full_window_is_reason_enough(self, scripted: tuple[LiveServer, Script]) -> None:
        """The whole does not fit the window, but what is old enough to be summarised does."""
        items = [*turns(35), {"role": "user", "content": FILLER * 50}]
        overflow = create(scripted[0], input=items)
        assert overflow.json()["error"]["code"] == "context_length_exceeded"
        response = create(scripted[0], input=items, context_management=[{"type": "compaction"}]).json()
        assert [item["type"] for item in response["output"]] == ["compaction", "message"]

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_failed_compaction_changes_nothing(self, scripted: tuple[LiveServer, Script], stream: bool) -> None:
        server, script = scripted
        create(server, input="first", conversation="conv_1")
        count = {"model": "m", "input": "x", "conversation": "conv_1"}
        before = httpx2.post(server.url + "/v1/responses/input_tokens", json=count).json()
        script.summary = FILLER * 100
        reply = create(server, input=self.history(), conversation="conv_1", context_management=asking(600), stream=stream)
        if stream:
            found = read_frames(reply.content)
            assert [frame.event for frame in found[-2:]] == ["error", "response.failed"]
            assert found[-2].data["code"] == "context_length_exceeded"
            failed = found[0].data["response"]["id"]
            assert httpx2.get(f"{server.url}/v1/responses/{failed}").status_code == 404
        else:
            assert refused(reply)["code"] == "context_length_exceeded"
        assert httpx2.post(server.url + "/v1/responses/input_tokens", json=count).json() == before

    def test_a_length_stop_is_incomplete(self, scripted: tuple[LiveServer, Script]) -> None:
        body = create(scripted[0], input="hi", context_management=asking(8000), max_output_tokens=2).json()
        assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})

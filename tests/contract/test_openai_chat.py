"""The official OpenAI client against /v1/chat/completions, over a real socket, with strict response validation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import openai
import pytest

from mlxcel.config.network import NetworkConfig
from mlxcel.config.server import ServerConfig
from mlxcel.testing.app import LiveServer, scripted_source

Live = Callable[..., LiveServer]
ANSWER = "The river runs past the old mill."


def client_of(server: LiveServer, key: str = "unused") -> openai.OpenAI:
    return server.hold(
        openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, _strict_response_validation=True)
    )


@pytest.fixture
def server(live: Live, tmp_path: Path) -> LiveServer:
    return live(scripted_source(ANSWER, tmp_path))


def test_a_whole_answer_validates(server: LiveServer) -> None:
    answer = client_of(server).chat.completions.create(model="any", messages=[{"role": "user", "content": "Hello"}])
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "scripted"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 0
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_validates_and_equals_the_whole_answer(server: LiveServer) -> None:
    chunks = list(
        client_of(server).chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": "Hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == "stop"
    assert set(reasons[:-1]) == {None}
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0
    assert len({chunk.id for chunk in chunks}) == 1


def test_without_stream_options_there_is_no_usage_chunk(server: LiveServer) -> None:
    chunks = list(
        client_of(server).chat.completions.create(model="any", messages=[{"role": "user", "content": "Hello"}], stream=True)
    )
    assert all(chunk.usage is None for chunk in chunks)


def test_the_token_limit_ends_with_length(server: LiveServer) -> None:
    answer = client_of(server).chat.completions.create(
        model="any", messages=[{"role": "user", "content": "Hello"}], max_tokens=3
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


@pytest.mark.parametrize("stop", ["past", ["nowhere", "s past t"], ["the old mill", "past"]])
@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_match_across_tokens_and_are_left_out(server: LiveServer, stop: str | list[str], stream: bool) -> None:
    wanted = ANSWER[: min(ANSWER.index(text) for text in ([stop] if isinstance(stop, str) else stop) if text in ANSWER)]
    if stream:
        chunks = list(
            client_of(server).chat.completions.create(
                model="any", messages=[{"role": "user", "content": "Hello"}], stop=stop, stream=True
            )
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        answer = client_of(server).chat.completions.create(
            model="any", messages=[{"role": "user", "content": "Hello"}], stop=stop
        )
        text, reason = answer.choices[0].message.content or "", answer.choices[0].finish_reason
    assert text == wanted
    assert reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_characters_that_span_tokens_arrive_whole(live: Live, tmp_path: Path, stream: bool) -> None:
    text = "👩‍👩‍👧‍👦 ďábelské 東京 हिन्दी"
    server = live(scripted_source(text, tmp_path))
    if stream:
        chunks = client_of(server).chat.completions.create(
            model="any", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    else:
        answer = client_of(server).chat.completions.create(model="any", messages=[{"role": "user", "content": "Hi"}])
        assert answer.choices[0].message.content == text


def test_bytes_that_are_no_text_become_replacement_characters(live: Live, tmp_path: Path) -> None:
    source = scripted_source("", tmp_path)
    broken = [token_id for token_id in range(256) if source.tokenizer.token_bytes(token_id) in (b"\xf0", b"\x9f")]
    rest = source.tokenizer.encode(" a")
    server = live(scripted_source(lambda prompt: [*sorted(broken), *rest], tmp_path))
    answer = client_of(server).chat.completions.create(model="any", messages=[{"role": "user", "content": "Hi"}])
    content = answer.choices[0].message.content or ""
    assert content.endswith(" a")
    assert "�" in content


def test_logprobs_come_one_a_token(server: LiveServer) -> None:
    answer = client_of(server).chat.completions.create(
        model="any", messages=[{"role": "user", "content": "Hello"}], logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(entry.token for entry in logprobs.content) == ANSWER


def test_several_choices_need_lenient_mode(live: Live, tmp_path: Path) -> None:
    strict = live(scripted_source(ANSWER, tmp_path))
    with pytest.raises(openai.BadRequestError) as caught:
        client_of(strict).chat.completions.create(model="any", messages=[{"role": "user", "content": "Hi"}], n=2)
    assert caught.value.param == "n"
    lenient = live(scripted_source(ANSWER, tmp_path), ServerConfig(network=NetworkConfig(compat="lenient")))
    answer = client_of(lenient).chat.completions.create(model="any", messages=[{"role": "user", "content": "Hi"}], n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.message.content for choice in answer.choices} == {ANSWER}
    chunks = list(
        client_of(lenient).chat.completions.create(
            model="any", messages=[{"role": "user", "content": "Hi"}], n=2, stream=True
        )
    )
    for index in (0, 1):
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices and chunk.choices[0].index == index]
        assert "".join(choice.delta.content or "" for choice in mine) == ANSWER
        assert [choice.finish_reason for choice in mine if choice.finish_reason] == ["stop"]


def test_keys_are_required_when_configured(live: Live, tmp_path: Path) -> None:
    server = live(scripted_source(ANSWER, tmp_path), ServerConfig(network=NetworkConfig(api_keys=("sk-right",))))
    client_of(server, "sk-right").chat.completions.create(model="any", messages=[{"role": "user", "content": "Hi"}])
    with pytest.raises(openai.AuthenticationError) as caught:
        client_of(server, "sk-wrong").chat.completions.create(model="any", messages=[{"role": "user", "content": "Hi"}])
    assert caught.value.type == "invalid_api_key"


def test_a_prompt_over_the_window_names_both_counts(live: Live, tmp_path: Path) -> None:
    server = live(scripted_source(ANSWER, tmp_path))
    with pytest.raises(openai.BadRequestError) as caught:
        client_of(server).chat.completions.create(model="any", messages=[{"role": "user", "content": "mill " * 9000}])
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.type == "exceed_context_size_error"
    assert "8192" in str(caught.value)


def test_models_are_listed(server: LiveServer) -> None:
    listed = client_of(server).models.list()
    assert [(model.id, model.owned_by) for model in listed] == [("scripted", "user")]

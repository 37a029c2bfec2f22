"""Bodies of POST /v1/responses and /v1/responses/input_tokens, and their way to a neutral job."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from mlxcel.core.chat import Message, TextPart
from mlxcel.core.errors import InvalidRequest
from mlxcel.core.jobs import ChatJob, GenerationOptions, OutputConstraint, ReasoningOptions
from mlxcel.wire.context import RequestContext, ServerFacts
from mlxcel.wire.openai.responses.history import HistoryItem, to_messages
from mlxcel.wire.openai.responses.items import Input, Item, UnservedItem, text_item
from mlxcel.wire.openai.responses.tools import FunctionChoice, Tool, ToolSet, read_tool_choice
from mlxcel.wire.parse import WireModel
from mlxcel.wire.sampling import SamplingFields, merge_options, thinking_budget
from mlxcel.wire.thinking import effort_enables, template_kwargs
from mlxcel.wire.turns import says_something

_MAX_METADATA = 16
_METADATA_KEY_CHARS, _METADATA_VALUE_CHARS = 64, 512
_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED_REASONING = "reasoning.encrypted_content"


class TextFormat(WireModel):
    type: Literal["text", "json_schema", "json_object"]
    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextConfig(WireModel):
    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningConfig(WireModel):
    effort: str | int | bool | None = None
    summary: str | None = None


class ConversationReference(WireModel):
    id: str


class ContextManagement(WireModel):
    type: Literal["compaction"]
    compact_threshold: Annotated[int, Field(ge=1, le=100_000_000)] | None = None


class InputTokensRequest(SamplingFields):
    """Everything that shapes the prompt."""

    model: str | None = None
    input: Input | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationReference | None = None
    tools: list[Tool] | None = None
    tool_choice: str | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: str | None = None
    prompt: Any = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def conversation_id(self) -> str | None:
        """The conversation named, in either spelling."""
        return self.conversation.id if isinstance(self.conversation, ConversationReference) else self.conversation


class ResponsesRequest(InputTokensRequest):
    """Request body. ``model`` may name anything: the one loaded model answers."""

    model: str
    stream: bool | None = None
    store: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    background: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_retention: str | None = None
    context_management: list[ContextManagement] | None = None

    @property
    def stores(self) -> bool:
        return self.store is not False

    @property
    def encrypts_reasoning(self) -> bool:
        """True when thinking is also to be sent as an opaque text that a stateless client can send back."""
        return _ENCRYPTED_REASONING in (self.include or ())


def refuse_unserved(request: InputTokensRequest) -> None:
    """
    Raises:
        InvalidRequest: fields that contradict each other, or that this server does not serve.
    """
    if request.truncation not in (None, "disabled"):
        raise InvalidRequest("'truncation': only disabled is served; shorten the input instead", param="truncation")
    if request.prompt is not None:
        raise InvalidRequest("'prompt': stored prompt templates are not served; send the text in 'input'", param="prompt")
    if request.previous_response_id is not None and request.conversation is not None:
        raise InvalidRequest(
            "'conversation' and 'previous_response_id' exclude each other; send one of them", param="conversation"
        )
    if not isinstance(request, ResponsesRequest):
        return
    if request.background:
        raise InvalidRequest("'background': only false is served; use stream for long answers", param="background")
    metadata = request.metadata or {}
    if len(metadata) > _MAX_METADATA:
        raise InvalidRequest(f"'metadata': at most {_MAX_METADATA} entries", param="metadata")
    if any(len(key) > _METADATA_KEY_CHARS or len(value) > _METADATA_VALUE_CHARS for key, value in metadata.items()):
        raise InvalidRequest(
            f"'metadata': keys have at most {_METADATA_KEY_CHARS} characters, values {_METADATA_VALUE_CHARS}",
            param="metadata",
        )


def input_items(request: InputTokensRequest, facts: ServerFacts) -> tuple[list[Item], tuple[str, ...]]:
    """The request's own items, and the types of those left out: items of built-in tools, in lenient mode."""
    if request.input is None:
        return [], ()
    if isinstance(request.input, str):
        return [text_item(request.input)], ()
    if facts.compat == "strict":
        return request.input, ()
    ignored = tuple(item.type for item in request.input if isinstance(item, UnservedItem))
    return [item for item in request.input if not isinstance(item, UnservedItem)], ignored


def to_job(request: InputTokensRequest, history: Sequence[HistoryItem], tools: ToolSet, context: RequestContext) -> ChatJob:
    """The neutral job; of a count request it is only good for counting.

    Args:
        request: the body.
        history: everything the answer continues from, the request's own input included.
        tools: of the request.
        context: of the request.

    Raises:
        InvalidRequest: a tool choice or format that is not served, or a request that says nothing.
    """
    return ChatJob(
        id=context.request_id,
        messages=_messages(request, history, tools),
        options=_options(request, context),
        tools=tools.specs,
        tool_choice=read_tool_choice(request.tool_choice, tools),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        reasoning=_reasoning(request),
        template_kwargs=template_kwargs(request.chat_template_kwargs, request.extra_body),
    )


def _messages(request: InputTokensRequest, history: Sequence[HistoryItem], tools: ToolSet) -> tuple[Message, ...]:
    messages = to_messages(history, tools.flat_name)
    if request.instructions:
        messages = _with_instructions(request.instructions, messages)
    if not any(says_something(message) for message in messages):
        raise InvalidRequest("'input': at least one item must have content", param="input")
    return messages


def _with_instructions(instructions: str, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """One leading system message: many templates refuse a second one, and agents send a developer message first."""
    texts = [instructions]
    rest = list(messages)
    while rest and rest[0].role == "system":
        texts.append(rest.pop(0).text)
    return (Message("system", (TextPart("\n\n".join(text for text in texts if text)),)), *rest)


def _options(request: InputTokensRequest, context: RequestContext) -> GenerationOptions:
    if not isinstance(request, ResponsesRequest):
        return merge_options(request, context, max_tokens=None)
    wants_logprobs = _LOGPROBS in (request.include or ()) or bool(request.top_logprobs)
    options = merge_options(
        request,
        context,
        max_tokens=request.max_output_tokens,
        top_logprobs=(request.top_logprobs or 0) if wants_logprobs else -1,
    )
    own = _constraint(request.text.format if request.text is not None else None, context.facts)
    return dataclasses.replace(
        options,
        constraint=own or options.constraint,
        session=options.session or request.safety_identifier,
    )


def _constraint(form: TextFormat | None, facts: ServerFacts) -> OutputConstraint | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_schema":
        if form.schema_ is None:
            raise InvalidRequest("'text.format.schema' is required when the type is json_schema", param="text.format.schema")
        return OutputConstraint("json_schema", form.schema_)
    if facts.compat == "strict":
        raise InvalidRequest(
            "'text.format.type': json_object is not supported; send json_schema with a schema", param="text.format.type"
        )
    return OutputConstraint("json_object", {})


def _reasoning(request: InputTokensRequest) -> ReasoningOptions:
    budget = thinking_budget(request)
    effort = request.reasoning.effort if request.reasoning is not None else None
    if effort is None:
        return ReasoningOptions(budget)
    word = str(effort).strip()
    enabled = effort_enables(word)
    return ReasoningOptions(budget, word if enabled else None, enabled)

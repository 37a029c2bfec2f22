"""POST /v1/messages and /v1/messages/count_tokens: the request, and its way to a neutral job."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from mlxcel.core.chat import Message, TextPart, ToolChoice, ToolSpec
from mlxcel.core.errors import InvalidRequest
from mlxcel.core.jobs import ChatJob, GenerationOptions, OutputConstraint, ReasoningOptions
from mlxcel.wire.anthropic.blocks import Block, Content, TextBlock, add_assistant_turn, add_user_turn
from mlxcel.wire.context import RequestContext
from mlxcel.wire.parse import WireModel
from mlxcel.wire.sampling import SamplingFields, merge_options, parse_stops, thinking_budget
from mlxcel.wire.thinking import effort_enables
from mlxcel.wire.tools import checked_tools
from mlxcel.wire.turns import TurnBuilder, says_something

# Claude Code's first system block. It changes with every build and request, so that no prompt prefix would ever repeat.
_BILLING_LINE = "x-anthropic-billing-header:"


class RequestMessage(WireModel):
    role: Literal["user", "assistant", "system"]
    content: Content


class ToolDefinition(WireModel):
    """A function tool when ``input_schema`` is there; otherwise one of Anthropic's server tools."""

    name: str = ""
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class RequestToolChoice(WireModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(WireModel):
    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    display: str | None = None


class OutputFormat(WireModel):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(WireModel):
    effort: str | None = None
    format: OutputFormat | None = None


def _system_tag(value: Any) -> str:
    return "‹blocks›" if isinstance(value, list) else "‹string›"


System = Annotated[Annotated[str, Tag("‹string›")] | Annotated[list[TextBlock], Tag("‹blocks›")], Discriminator(_system_tag)]


class CountTokensRequest(SamplingFields):
    """Everything that shapes the prompt."""

    model: str
    messages: Annotated[list[RequestMessage], Field(min_length=1)]
    system: System | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: RequestToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    metadata: Any = None


class MessagesRequest(CountTokensRequest):
    """Request body. ``model`` may name anything: the one loaded model answers."""

    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)]
    stop_sequences: list[str] | None = None
    stream: bool | None = None

    @property
    def omits_thinking(self) -> bool:
        """True when the client wants to know that there was thinking, but not its text."""
        return self.thinking is not None and self.thinking.display == "omitted"


def to_job(request: CountTokensRequest, context: RequestContext) -> ChatJob:
    """The neutral job; of a count request it is only good for counting.

    Raises:
        InvalidRequest: content that is not served, or a request that says nothing.
    """
    choice = request.tool_choice
    return ChatJob(
        id=context.request_id,
        messages=_messages(request),
        options=_options(request, context),
        tools=_tools(request.tools or ()),
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=not (choice is not None and choice.disable_parallel_tool_use),
        reasoning=_reasoning(request),
    )


def ignored_tools(request: CountTokensRequest) -> tuple[str, ...]:
    """Names of the server tools that were dropped."""
    return tuple(tool.name for tool in request.tools or () if tool.input_schema is None)


def _options(request: CountTokensRequest, context: RequestContext) -> GenerationOptions:
    options = merge_options(request, context, max_tokens=None)
    if isinstance(request, MessagesRequest):
        stop = options.stop if request.stop_sequences is None else parse_stops(request.stop_sequences)
        options = dataclasses.replace(options, max_tokens=request.max_tokens, stop=stop)
    user_id = request.metadata.get("user_id") if isinstance(request.metadata, dict) else None
    if options.session is None and isinstance(user_id, str) and user_id:
        options = dataclasses.replace(options, session=user_id)
    form = request.output_config.format if request.output_config is not None else None
    form = request.output_format if form is None else form
    if form is not None:
        options = dataclasses.replace(options, constraint=OutputConstraint("json_schema", form.schema_))
    return options


def _tools(tools: Sequence[ToolDefinition]) -> tuple[ToolSpec, ...]:
    specs = [
        ToolSpec(tool.name, tool.description, tool.input_schema, tool.strict)
        for tool in tools
        if tool.input_schema is not None
    ]
    return checked_tools(specs)


def _tool_choice(choice: RequestToolChoice | None) -> ToolChoice:
    if choice is None or choice.type == "auto":
        return ToolChoice()
    if choice.type == "none":
        return ToolChoice("none")
    if choice.type == "any":
        return ToolChoice("required")
    if not choice.name.strip():
        raise InvalidRequest("'tool_choice.name' must name the tool", param="tool_choice.name")
    return ToolChoice("named", choice.name)


def _reasoning(request: CountTokensRequest) -> ReasoningOptions:
    """``thinking`` decides; without it an effort word does, and without both the server's own setting holds."""
    config, budget = request.thinking, thinking_budget(request)
    effort = request.output_config.effort if request.output_config is not None else None
    if config is None:
        return ReasoningOptions(budget, effort, None if effort is None else effort_enables(effort))
    enabled = config.type != "disabled"
    if config.type == "enabled" and config.budget_tokens is not None:
        budget = config.budget_tokens
    return ReasoningOptions(budget, effort, enabled)


# ---- messages ---------------------------------------------------------------------------------------------------------


def _messages(request: CountTokensRequest) -> tuple[Message, ...]:
    system = _system_texts(request.system)
    groups = _combined(request.messages, system)
    turns = TurnBuilder()
    for group in groups:
        add = add_user_turn if group.role == "user" else add_assistant_turn
        add(turns, group.blocks, group.path)
    messages = turns.finish()
    if system:
        messages = (Message("system", (TextPart("\n\n".join(system)),)), *messages)
    if not any(says_something(message) for message in messages):
        raise InvalidRequest("'messages': at least one message must have content", param="messages")
    return messages


def _system_texts(system: str | list[TextBlock] | None) -> list[str]:
    texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
    if texts and texts[0].lstrip().startswith(_BILLING_LINE):
        texts[0] = texts[0].lstrip().partition("\n")[2]
    return [text for text in texts if text]


@dataclasses.dataclass(slots=True)
class _Group:
    """Neighbouring messages of one role, which count as one turn; ``path`` is where the first of them came from."""

    role: Literal["user", "assistant"]
    path: str
    blocks: list[Block]


def _combined(messages: Sequence[RequestMessage], system: list[str]) -> list[_Group]:
    """Turns that alternate. A system turn joins the user turn before it, else the one after it; at the head, ``system``."""
    groups: list[_Group] = []
    waiting: list[str] = []
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        blocks: list[Block] = [TextBlock(text=message.content)] if isinstance(message.content, str) else message.content
        if message.role == "system":
            text = _only_text(blocks, path)
            if not groups:
                system.append(text)
            elif groups[-1].role == "user":
                _join(groups[-1].blocks, [TextBlock(text=text)])
            else:
                waiting.append(text)
            continue
        if waiting:
            groups.append(_Group("user", path, [TextBlock(text="\n\n".join(waiting))]))
            waiting = []
        if groups and groups[-1].role == message.role:
            _join(groups[-1].blocks, blocks)
        else:
            groups.append(_Group(message.role, path, list(blocks)))
    if waiting:
        groups.append(_Group("user", "messages", [TextBlock(text="\n\n".join(waiting))]))
    return groups


def _only_text(blocks: Sequence[Block], path: str) -> str:
    if not all(isinstance(block, TextBlock) for block in blocks):
        raise InvalidRequest(f"'{path}.content': a system turn may hold text only", param=f"{path}.content")
    return "\n\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def _join(blocks: list[Block], more: Sequence[Block]) -> None:
    """Append, with a blank line between two texts that belonged to different messages."""
    more = list(more)
    if blocks and more and isinstance(blocks[-1], TextBlock) and isinstance(more[0], TextBlock):
        more[0] = TextBlock(text="\n\n" + more[0].text)
    blocks.extend(more)

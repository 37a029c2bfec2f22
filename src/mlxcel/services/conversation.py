"""A conversation as a prompt: tool rules, thinking switches, template, tokens, and the parser of what comes back."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

from mlxcel.core.chat import Message, ToolChoice, ToolSpec
from mlxcel.core.errors import CapabilityMissing, InvalidRequest
from mlxcel.core.jobs import ChatJob, OutputConstraint, ReasoningOptions
from mlxcel.core.work import ThinkingPlan
from mlxcel.services.generation import Prompt
from mlxcel.services.model import ServedModel
from mlxcel.text.detokenize import Detokenizer
from mlxcel.text.output import OutputParser
from mlxcel.text.reasoning import ReasoningSplitter
from mlxcel.text.stop import StopMatcher
from mlxcel.text.template_messages import place_instruction
from mlxcel.text.tool_fallback import write_out_tools
from mlxcel.text.tool_formats import ToolStream
from mlxcel.text.tool_grammars import tool_call_grammar


@dataclasses.dataclass(frozen=True, slots=True)
class Conversation:
    """A rendered conversation.

    Attributes:
        prompt: for the engine.
        text: the prompt as plain text.
        tools: those the model may call; they also type the arguments of its calls.
        starts_thinking: the prompt's end opened a thinking block.
        tool_grammar: constraint of a forced tool choice, when the format has one.
    """

    prompt: Prompt
    text: str
    tools: tuple[ToolSpec, ...]
    starts_thinking: bool
    tool_grammar: OutputConstraint | None = None


class ConversationRenderer:
    """Renders conversations for one model. Slow templates are the caller's concern: use a thread."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def check(self, job: ChatJob) -> None:
        """Refuse what cannot be served before anything is rendered or fetched.

        Raises:
            InvalidRequest: a tool choice that the declared tools cannot satisfy, or two constraints at once.
            CapabilityMissing: media for a model that only reads text.
        """
        kinds = sorted({part.kind for message in job.messages for part in message.media})
        if kinds:
            raise CapabilityMissing(
                f"the model {self._model.name} reads text only; it cannot take {' or '.join(kinds)} input"
            )
        choice = job.tool_choice
        if choice.mode == "required" and not job.tools:
            raise InvalidRequest("'tool_choice': required needs at least one tool in 'tools'", param="tool_choice")
        if choice.mode == "named" and choice.name not in {tool.name for tool in job.tools}:
            raise InvalidRequest("'tool_choice': the named function is not declared in 'tools'", param="tool_choice")
        if choice.forced and job.options.constraint not in (None, self._model.policy.default_constraint):
            raise InvalidRequest(
                "'tool_choice': a forced tool call cannot be combined with a structured output format", param="tool_choice"
            )

    def render(self, job: ChatJob) -> Conversation:
        """The prompt of a job.

        Raises:
            InvalidRequest: the template refused the conversation, or a template variable is reserved.
        """
        tools = self._visible_tools(job)
        messages = job.messages
        knows_tools = self._model.template.supports_tools
        if not knows_tools:
            messages = write_out_tools(messages, tools)
        messages = _with_instruction(messages, job.tool_choice)
        kwargs = self._template_kwargs(job)
        rendered = self._model.template.render(
            messages,
            tools if knows_tools else (),
            kwargs=kwargs,
            continue_final=job.continue_final and self._model.policy.continue_final,
            with_boundaries=self._model.client.info.state == "snapshot",
        )
        token_ids, boundaries = rendered.encode_with_boundaries(self._model.tokenizer)
        markers = self._model.reasoning
        starts_thinking = markers is not None and rendered.ends_inside(markers.open, markers.close)
        return Conversation(
            prompt=Prompt(
                token_ids=token_ids,
                cache_variant=_signature(kwargs, tools),
                boundaries=boundaries,
                thinking=self._thinking_plan(job, starts_thinking),
            ),
            text=rendered.text,
            tools=tools,
            starts_thinking=starts_thinking,
            tool_grammar=self._tool_grammar(job, tools),
        )

    def parser(self, job: ChatJob, conversation: Conversation) -> OutputParser:
        """A fresh parser for one answer to the conversation."""
        model, policy = self._model, self._model.policy
        stops = StopMatcher(job.options.stop) if job.options.stop else None
        if policy.skip_parsing:
            return OutputParser(Detokenizer(model.tokenizer, skip_special=False, continues_text=True), stops)
        markers, fmt = model.reasoning, model.tool_format
        calls = None
        if fmt is not None and (conversation.tools or fmt.owns_output or fmt.frames):
            calls = ToolStream(fmt, conversation.tools, parallel=job.parallel_tool_calls)
        splitter = None
        if markers is not None and (fmt is None or not fmt.owns_output):
            ends = fmt.ends_thinking if fmt is not None else ()
            splitter = ReasoningSplitter(markers, starts_inside=conversation.starts_thinking, implicit_ends=ends)
        return OutputParser(
            Detokenizer(model.tokenizer, continues_text=True, keep=model.delimiter_ids),
            stops,
            reasoning=splitter,
            tools=calls,
            reasoning_format=job.reasoning.format or policy.reasoning_format,
        )

    def _visible_tools(self, job: ChatJob) -> tuple[ToolSpec, ...]:
        if job.tool_choice.mode == "none":
            return ()
        if job.tool_choice.mode == "named":
            return tuple(tool for tool in job.tools if tool.name == job.tool_choice.name)
        return job.tools

    def _tool_grammar(self, job: ChatJob, tools: tuple[ToolSpec, ...]) -> OutputConstraint | None:
        tool_format = self._model.tool_format
        if not job.tool_choice.forced or tool_format is None:
            return None
        if tool_format.shape is None:
            return None
        named = job.tool_choice.mode == "named"
        return tool_call_grammar(tool_format.shape, tools, named=named, parallel=job.parallel_tool_calls)

    def _template_kwargs(self, job: ChatJob) -> dict[str, Any]:
        """Server defaults, then the reasoning options, then the request's own variables; the later win per key."""
        policy = self._model.policy
        kwargs: dict[str, Any] = dict(policy.template_kwargs)
        if policy.thinking != "auto":
            kwargs["enable_thinking"] = policy.thinking == "on"
        if policy.reasoning_effort:
            kwargs |= self._effort(policy.reasoning_effort)
        kwargs |= self._reasoning_kwargs(job.reasoning)
        return kwargs | dict(job.template_kwargs)

    def _reasoning_kwargs(self, reasoning: ReasoningOptions) -> dict[str, Any]:
        kwargs: dict[str, Any] = {}
        if reasoning.effort:
            kwargs |= self._effort(reasoning.effort)
        if reasoning.enabled is not None:
            kwargs["enable_thinking"] = reasoning.enabled
        if reasoning.budget_tokens == 0:
            kwargs["enable_thinking"] = False
        return kwargs

    def _effort(self, word: str) -> dict[str, Any]:
        name = "reasoning_strength" if self._model.template.reads("reasoning_strength") else "reasoning_effort"
        return {name: word}

    def _thinking_plan(self, job: ChatJob, starts_thinking: bool) -> ThinkingPlan | None:
        """None when there is nothing to control: no budget, and no constraint that has to wait for the block's end."""
        markers, policy = self._model.reasoning, self._model.policy
        if markers is None:
            return None
        budget = policy.reasoning_budget_tokens if job.reasoning.budget_tokens is None else job.reasoning.budget_tokens
        constrained = job.options.constraint is not None or job.tool_choice.forced
        controlled = job.reasoning.can_be_ended
        if budget < 0 and not constrained and not controlled:
            return None
        if constrained and not starts_thinking and not self._thinks_unasked(job):
            return None
        encode = self._model.tokenizer.encode
        return ThinkingPlan(
            open_ids=tuple(encode(markers.open)),
            close_ids=tuple(encode(policy.reasoning_budget_message + markers.close)),
            starts_inside=starts_thinking,
            budget_tokens=budget,
            can_be_ended=controlled,
        )

    def _thinks_unasked(self, job: ChatJob) -> bool:
        """Whether the model will open a block by itself: its template has the switch, and nobody switched it off."""
        if not self._model.template.reads("enable_thinking"):
            return job.reasoning.enabled is True
        return self._template_kwargs(job).get("enable_thinking", True) is not False


def _with_instruction(messages: tuple[Message, ...], choice: ToolChoice) -> tuple[Message, ...]:
    """A forced choice, said to the model in words."""
    if choice.mode == "named":
        return place_instruction(
            messages, f"You must call the '{choice.name}' function. Answer with the function call only."
        )
    if choice.mode == "required":
        text = "You must call one or more of the available functions. Answer with function calls only."
        return place_instruction(messages, text)
    return messages


def _signature(kwargs: Mapping[str, Any], tools: tuple[ToolSpec, ...]) -> str:
    """Digest of what shapes the prompt besides the messages."""
    names = ",".join(tool.name for tool in tools)
    return hashlib.sha256(f"{sorted(kwargs.items(), key=lambda item: item[0])!r}\n{names}".encode()).hexdigest()[:16]

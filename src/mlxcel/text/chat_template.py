"""Conversations to prompts, through the chat template that ships with a model.

What a user, a tool or a client wrote can never become a control token: spellings of control tokens in such text are preceded
by a private guard character while the template runs, and encoding treats a guarded spelling as ordinary text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jinja2
from jinja2 import meta, nodes

from mlxcel.core.chat import Message, TextPart, ToolCall, ToolSpec
from mlxcel.core.errors import InvalidRequest, StartupError
from mlxcel.text.control_text import ControlTextScanner
from mlxcel.text.template_environment import CompiledTemplate, RenderLimits
from mlxcel.text.template_messages import (
    Guard,
    TemplateHabits,
    guard_strings,
    strip_old_thinking,
    template_messages,
    template_tools,
)
from mlxcel.text.template_turns import find_turn_habits, fit_turns
from mlxcel.text.tokenizer import Tokenizer

_FALLBACK_SOURCE = """{{ bos_token | default('') }}{% for message in messages %}\
{% if message.role == 'user' %}{{ 'User: ' + message.content + '\\n' }}\
{% elif message.role == 'assistant' %}{{ 'Assistant: ' + (message.content or '') + '\\n' }}\
{% else %}{{ message.content + '\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""
# Unicode noncharacters other than the tokenizer's own: text that is meant to be interchanged never contains them.
_GUARDS = tuple(chr(code) for code in range(0xFDD1, 0xFDF0))
_RESERVED = frozenset(
    {"tokenize", "chat_template", "add_generation_prompt", "continue_final_message", "messages", "tools", "conversation",
     "padding", "truncation", "max_length", "tokenizer_kwargs", "raise_exception", "strftime_now", "namespace", "dict",
     "range", "mlxcel_tick"}
)  # fmt: skip
_LIMITS = RenderLimits()
_PROBE_LIMITS = RenderLimits(output_chars=1024 * 1024, operations=20_000, seconds=1.0)
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered conversation.

    Attributes:
        text: the prompt as plain text.
        boundaries: character offsets in ``text`` worth a cache snapshot, ascending; empty unless asked for.
    """

    text: str
    boundaries: tuple[int, ...] = ()
    _guarded: str = ""
    _guard: str = _GUARDS[0]
    _continued: str = ""

    def encode(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Prompt tokens. Control tokens come from the template and the model's own turns only; none is added or doubled."""
        return tuple(tokenizer.encode_guarded(self._guarded, self._guard))

    def encode_with_boundaries(self, tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Prompt tokens, and for each boundary the number of tokens that lie wholly before it."""
        ids, ends = tokenizer.encode_with_ends(self._guarded, self._guard)
        counts = {bisect_right(ends, boundary) for boundary in self.boundaries}
        return tuple(ids), tuple(sorted(count for count in counts if 0 < count < len(ids)))

    def ends_inside(self, opening: str, closing: str) -> bool:
        """True when the answer begins in a block: the prompt ends with ``opening``, or continues a turn that opened it."""
        last = self._continued.rfind(opening)
        return self.text.rstrip().endswith(opening) or (last >= 0 and self._continued.rfind(closing) < last)


class ChatTemplate:
    """A compiled chat template with what is known about its habits. Immutable and thread-safe.

    Rendering takes milliseconds for long conversations; callers run it off the event loop.

    Args:
        source: Jinja source; None uses a plain ``User: …`` / ``Assistant:`` transcript.
        special_tokens: template variables such as ``bos_token``.
        control_markers: spellings that must not take effect in text the model did not write.
        limits: what one rendering may use.

    Raises:
        StartupError: the source is not a valid template.
    """

    def __init__(
        self,
        source: str | None,
        special_tokens: Mapping[str, str] | None = None,
        control_markers: Iterable[str] = (),
        limits: RenderLimits = _LIMITS,
    ) -> None:
        self._limits = limits
        self._for_tools: ChatTemplate | None = None  # some models ship a second template for requests with tools
        self.is_fallback = source is None
        self.source = _FALLBACK_SOURCE if source is None else source
        self._special_tokens = dict(special_tokens or {})
        self._scanner = ControlTextScanner(control_markers)
        try:
            self._compiled = CompiledTemplate(self.source)
        except jinja2.TemplateSyntaxError as error:
            raise StartupError(f"the chat template has a syntax error in line {error.lineno}") from error
        except (RecursionError, MemoryError) as error:
            raise StartupError("the chat template is nested too deeply") from error
        self._variables = frozenset(meta.find_undeclared_variables(self._compiled.tree))
        self._habits = self._find_habits()

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, source: str | None = None) -> ChatTemplate:
        """The template of a model; ``source`` replaces the one that ships with it."""
        chosen = source if source is not None else tokenizer.chat_template
        special_tokens = dict(tokenizer.special_tokens)
        if chosen is None and not tokenizer.adds_bos:
            special_tokens.pop("bos_token", None)
        template = cls(chosen, special_tokens, tokenizer.control_markers)
        with_tools = tokenizer.named_templates.get("tool_use")
        if with_tools is not None and source in (None, tokenizer.chat_template):
            template._for_tools = cls(with_tools, special_tokens, tokenizer.control_markers)
        return template

    # ---- what the template can do -------------------------------------------------------------------------------------

    def reads(self, name: str) -> bool:
        """True when the template reads the variable ``name`` (``enable_thinking``, ``documents``)."""
        return name in self._variables

    @cached_property
    def supports_tools(self) -> bool:
        """True when declared tools appear in the prompt."""
        tool = ToolSpec("probe_function", "probe", {"type": "object", "properties": {}})
        prober = self._for_tools or self
        rendered = prober._try_probe([Message("user", (TextPart("probe text"),))], tools=(tool,))
        return rendered is not None and tool.name in rendered

    @property
    def tool_source(self) -> str:
        """The source that requests with tools are rendered with."""
        return (self._for_tools or self).source

    @property
    def takes_media(self) -> bool:
        """True when message content may hold images, audio or video."""
        return self._habits.takes_parts

    def opens_block(self, opening: str, closing: str, kwargs: Mapping[str, Any] | None = None) -> bool:
        """True when the generation prompt leaves a block open, so that the answer starts inside it."""
        try:
            rendered = self.render([Message("user", (TextPart("probe text"),))], kwargs=kwargs)
        except InvalidRequest:
            return False
        return rendered.ends_inside(opening, closing)

    def opens_reasoning(self, kwargs: Mapping[str, Any] | None = None) -> bool:
        """True when the generation prompt ends in ``<think>``."""
        return self.opens_block("<think>", "</think>", kwargs)

    # ---- rendering ----------------------------------------------------------------------------------------------------

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        kwargs: Mapping[str, Any] | None = None,
        with_boundaries: bool = False,
    ) -> Rendered:
        """Render a conversation.

        Args:
            messages: at least one turn.
            tools: functions to declare; when empty the template's ``tools`` is undefined.
            add_generation_prompt: end with the opening of an assistant turn.
            continue_final: a trailing assistant turn is left open for the model to go on with; without one this changes
                nothing.
            kwargs: further template variables of the client. ``preserve_thinking`` true keeps thinking in old turns.
            with_boundaries: also find offsets worth a cache snapshot (costs up to three further renderings).

        Raises:
            InvalidRequest: the template refuses the conversation or fails on it, a reserved variable is set, or the final
                turn cannot be continued.
        """
        if tools and self._for_tools is not None:
            return self._for_tools.render(
                messages,
                tools,
                add_generation_prompt=add_generation_prompt,
                continue_final=continue_final,
                kwargs=kwargs,
                with_boundaries=with_boundaries,
            )
        if not messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        if not self.takes_media:
            for part in (part for message in messages for part in message.media):
                raise InvalidRequest(f"this model's chat template takes no {part.kind} input", param="messages")
        variables = self._client_variables(kwargs or {})
        if not variables.get("preserve_thinking"):
            messages = strip_old_thinking(messages)
        messages = fit_turns(messages, self._habits.turns)
        guard, mark = _unused_marks(messages, tools, variables)
        request = _Request(tuple(messages), tuple(tools), variables, guard, mark)
        if continue_final and messages[-1].role == "assistant":
            return self._render_open(request)
        guarded = self._run(request, add_generation_prompt)
        boundaries = self._boundaries(request, guarded) if with_boundaries else ()
        return Rendered(_plain(guarded, request.guard), boundaries, guarded, request.guard)

    def _client_variables(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        for name in kwargs:
            if name in _RESERVED or name in self._special_tokens or name.startswith(("return_", "_")):
                raise InvalidRequest(f"chat_template_kwargs must not set '{name[:64]}'", param="chat_template_kwargs")
        variables = dict(kwargs)
        if "enable_thinking" in variables and self.reads("thinking"):
            variables.setdefault("thinking", variables["enable_thinking"])
        return variables

    def _run(self, request: _Request, add_generation_prompt: bool) -> str:
        guard = self._make_guard(request.guard)
        variables: dict[str, Any] = {**self._special_tokens, **guard_strings(request.variables, guard)}
        variables["messages"] = template_messages(request.messages, self._habits, guard)
        variables["add_generation_prompt"] = add_generation_prompt
        if request.tools:
            variables["tools"] = template_tools(request.tools, guard)
        return self._compiled.render(variables, self._limits)

    def _make_guard(self, mark: str) -> Guard:
        def guard(text: str) -> str:
            starts = list(self._scanner.starts(text))
            if not starts:
                return text
            pieces = [text[: starts[0]]]
            pieces += [mark + text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
            return "".join(pieces)

        return guard

    def _render_open(self, request: _Request) -> Rendered:
        """Render with a mark at the end of the final text, and cut there."""
        final = request.messages[-1]
        if final.tool_calls:
            raise InvalidRequest("an assistant message with tool_calls cannot be continued", param="messages")
        marked = replace(final, parts=(*final.parts, TextPart(request.mark)))
        guarded = self._run(replace(request, messages=(*request.messages[:-1], marked)), add_generation_prompt=False)
        cut = guarded.rfind(request.mark)
        if cut < 0:
            raise InvalidRequest("this model's chat template cannot continue an assistant message", param="messages")
        guarded = guarded[:cut].replace(request.mark, "")
        return Rendered(_plain(guarded, request.guard), (), guarded, request.guard, final.text)

    # ---- snapshots ----------------------------------------------------------------------------------------------------

    def _boundaries(self, request: _Request, guarded: str) -> tuple[int, ...]:
        """Where the first and the last user text begin, and where the conversation ends before the generation prompt.

        Found by rendering variants and comparing, which holds for every template.
        """
        users = [index for index, message in enumerate(request.messages) if message.role == "user"]
        found: set[int] = set()
        for index in {users[0], users[-1]} if users else ():
            changed = replace(request.messages[index], parts=(TextPart(request.mark + "?"),))
            variant = replace(request, messages=(*request.messages[:index], changed, *request.messages[index + 1 :]))
            found.add(self._shared_length(variant, guarded, add_generation_prompt=True))
        found.add(self._shared_length(request, guarded, add_generation_prompt=False))
        plain = {length - guarded.count(request.guard, 0, length) for length in found}
        return tuple(sorted(offset for offset in plain if offset > 0))

    def _shared_length(self, request: _Request, guarded: str, *, add_generation_prompt: bool) -> int:
        try:
            other = self._run(request, add_generation_prompt)
        except InvalidRequest:
            return 0
        limit = min(len(other), len(guarded))
        low, high = 0, limit
        while low < high:  # the longest common prefix by bisection: slices compare at memory speed
            middle = (low + high + 1) // 2
            if other[:middle] == guarded[:middle]:
                low = middle
            else:
                high = middle - 1
        return low

    # ---- habits -------------------------------------------------------------------------------------------------------

    def _find_habits(self) -> TemplateHabits:
        """Try the template on small conversations. Each trial starts from what is known so far."""
        fields = _read_fields(self._compiled.tree)
        reasoning = tuple(name for name in _REASONING_FIELDS if name in fields)
        self._habits = habits = TemplateHabits(reasoning_fields=reasoning[:1])
        ask = [Message("user", (TextPart("probe text"),))]
        as_parts = self._try_probe(ask, habits=replace(habits, text_as_string=False)) or ""
        takes_parts = "probe text" in as_parts and "'type'" not in as_parts and '"type"' not in as_parts
        as_string = self._try_probe(ask, habits=habits) or ""
        habits = replace(habits, takes_parts=takes_parts, text_as_string="probe text" in as_string or not takes_parts)
        call = Message("assistant", tool_calls=(ToolCall("probe00id", "probe_function", '{"probe_key": "probe_value"}'),))
        turns = [*ask, call, Message("tool", (TextPart("probe result"),), tool_call_id="probe00id")]
        candidates = [
            replace(habits, null_content=null_content, arguments_as_text=as_text)
            for as_text in (False, True)
            for null_content in (True, False)
        ]
        rendered = [self._try_probe(turns, habits=candidate) for candidate in candidates]
        habits = candidates[max(range(len(candidates)), key=lambda index: _fidelity(rendered[index]))]
        return replace(habits, turns=find_turn_habits(lambda turns: self._try_probe(turns, habits=habits)))

    def _try_probe(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), habits: TemplateHabits | None = None
    ) -> str | None:
        def unguarded(text: str) -> str:
            return text

        variables: dict[str, Any] = dict(self._special_tokens)
        variables["messages"] = template_messages(messages, habits or self._habits, unguarded)
        variables["add_generation_prompt"] = True
        if tools:
            variables["tools"] = template_tools(tools, unguarded)
        try:
            return self._compiled.render(variables, _PROBE_LIMITS)
        except InvalidRequest:
            return None


@dataclass(frozen=True, slots=True)
class _Request:
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    variables: Mapping[str, Any] = field(default_factory=dict)
    guard: str = _GUARDS[0]
    mark: str = _GUARDS[1]


def _unused_marks(messages: Sequence[Message], tools: Sequence[ToolSpec], variables: Mapping[str, Any]) -> tuple[str, str]:
    """Two noncharacters that occur nowhere in the request's text."""
    texts: list[str] = []

    def collect(text: str) -> str:
        texts.append(text)
        return text

    template_messages(messages, TemplateHabits(reasoning_fields=_REASONING_FIELDS), collect)
    texts += [message.text for message in messages]
    template_tools(tools, collect)
    guard_strings(variables, collect)
    free = (mark for mark in _GUARDS if not any(mark in text for text in texts))
    guard, mark = next(free, None), next(free, None)
    if guard is None or mark is None:
        raise InvalidRequest("messages must not contain Unicode noncharacters", param="messages")
    return guard, mark


def _plain(guarded: str, guard: str) -> str:
    return guarded.replace(guard, "")


def _fidelity(rendered: str | None) -> int:
    """How well a trial came through the template: not at all, at least without Python's spelling of none, or complete."""
    if rendered is None or "None" in rendered:
        return 0 if rendered is None else 1
    return 3 if "probe_key" in rendered and "'probe_key'" not in rendered else 2


def _read_fields(tree: nodes.Template) -> frozenset[str]:
    """Every attribute and every constant key that the template looks up, ``message.get("key")`` included."""
    found: set[object] = {node.attr for node in tree.find_all(nodes.Getattr)}
    found |= {node.arg.value for node in tree.find_all(nodes.Getitem) if isinstance(node.arg, nodes.Const)}
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr == "get" and call.args:
            found |= {argument.value for argument in call.args[:1] if isinstance(argument, nodes.Const)}
    return frozenset(name for name in found if isinstance(name, str))

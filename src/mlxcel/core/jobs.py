"""What a client asked for, in neutral words. A wire module makes a job from a request; a service carries it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

from mlxcel.core.chat import Message, ToolChoice, ToolSpec
from mlxcel.core.sampling import LoopDetection, SamplingParams


class Priority(IntEnum):
    """Order in the prefill queue; smaller goes first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


@dataclass(frozen=True, slots=True)
class OutputConstraint:
    """What the output must conform to: a JSON schema, any JSON object, a grammar (Lark or GBNF text), or tool calls.

    "tool_calls" is built by ``text.constrain.tool_call_grammar``; its ``source`` names the call shape and the functions.
    """

    kind: Literal["json_schema", "json_object", "gbnf", "lark", "regex", "tool_calls"]
    source: Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class ReasoningOptions:
    """How the thinking channel is steered and shown.

    ``budget_tokens`` None: server default; -1 unlimited; 0 none; N at most N tokens.
    ``effort`` is the client's word, None when not given. ``format`` None: server default. ``can_be_ended``: the client may
    end the thinking of this request while it is being written.
    """

    budget_tokens: int | None = None
    effort: str | None = None
    enabled: bool | None = None
    format: Literal["none", "deepseek", "deepseek-legacy", "auto"] | None = None
    can_be_ended: bool = False


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """The part of a job that every generating surface shares.

    Attributes:
        max_tokens: None or -1 means until the window is full.
        stop_ids: tokens that end the answer besides the model's own; left out of the text as well.
        stop: stop strings; matched across tokens and left out of the text.
        sampling: complete (server defaults are already merged in).
        loop: None leaves loop detection to the server's policy.
        cache_prompt: None server default; False neither reads nor writes the prompt cache.
        cache_scope: keeps tenants apart (derived from the API key); never client-chosen.
        session: client's cache hint (``prompt_cache_key``, then ``user``).
        keep_tokens: prompt head that context shift keeps; -1 all.
        dry_breaker_texts: DRY breakers as text; the service turns them into tokens.
        logit_bias_texts: biases given for a text instead of a token id; each token of the text gets it.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    priority: Priority = Priority.NORMAL
    loop: LoopDetection | None = None
    cache_prompt: bool | None = None
    cache_scope: str = ""
    session: str | None = None
    constraint: OutputConstraint | None = None
    keep_tokens: int = 0
    adapters: tuple[tuple[int, float], ...] | None = None  # (adapter id, scale); None = live server scales
    dry_breaker_texts: tuple[str, ...] = ()
    logit_bias_texts: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ChatJob:
    """Answer a conversation.

    ``template_kwargs`` are the request's own; the service merges them over the server's defaults.
    ``parallel_tool_calls`` False allows one call a turn. ``continue_final``: a trailing assistant turn is continued.
    """

    id: str
    messages: tuple[Message, ...]
    options: GenerationOptions = field(default_factory=GenerationOptions)
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    parallel_tool_calls: bool = True
    reasoning: ReasoningOptions = field(default_factory=ReasoningOptions)
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    continue_final: bool = True


@dataclass(frozen=True, slots=True)
class CompletionJob:
    """Continue a raw prompt: text, or a sequence in which token ids are used verbatim and texts are encoded.

    Every channel and marker comes back verbatim: there is no thinking or tool parsing.
    """

    id: str
    prompt: str | tuple[int | str, ...]
    options: GenerationOptions = field(default_factory=GenerationOptions)
    echo: bool = False
    reasoning: ReasoningOptions = field(default_factory=ReasoningOptions)

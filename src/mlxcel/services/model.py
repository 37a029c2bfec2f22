"""A loaded chat model as the services see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from mlxcel.core.jobs import OutputConstraint
from mlxcel.core.sampling import LoopDetection
from mlxcel.engine.client import EngineClient
from mlxcel.services.adapters import LiveAdapters
from mlxcel.text.chat_template import ChatTemplate
from mlxcel.text.constrain import ConstraintFactory
from mlxcel.text.reasoning import ReasoningMarkers
from mlxcel.text.tokenizer import Tokenizer
from mlxcel.text.tool_formats import ToolFormat

ReasoningFormat = Literal["none", "deepseek", "deepseek-legacy", "auto"]


@dataclass(frozen=True, slots=True)
class ChatPolicy:
    """The operator's choices about conversations.

    Attributes:
        template_kwargs: default template variables; a request's own win per key.
        skip_parsing: return the model's text verbatim.
        continue_final: a trailing assistant turn may be continued.
        thinking: "on" and "off" set the template's switch; "auto" leaves it.
        reasoning_format: where thoughts go.
        reasoning_effort: default effort word, "" for none.
        reasoning_budget_tokens: -1 unlimited.
        reasoning_budget_message: text put before a forced end of thinking.
        default_loop: loop detection of requests that set none of its fields.
        default_constraint: constraint of requests that name none; a forced tool call goes before it.
        context_shift: a full window drops old tokens instead of ending the answer.
    """

    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    skip_parsing: bool = False
    continue_final: bool = True
    thinking: Literal["on", "off", "auto"] = "auto"
    reasoning_format: ReasoningFormat = "auto"
    reasoning_effort: str = ""
    reasoning_budget_tokens: int = -1
    reasoning_budget_message: str = ""
    default_loop: LoopDetection | None = None
    default_constraint: OutputConstraint | None = None
    context_shift: bool = False


@dataclass(frozen=True)
class ServedModel:
    """Everything a conversation with one model needs.

    Attributes:
        name: shown to clients.
        context_tokens: effective window of one slot.
        client: the door to its engine.
        tool_format: how the model writes calls; None when its template knows no tools.
        reasoning: its thinking delimiters; None when it does not think.
        meta: facts for the model list (parameter count, vocabulary, trained window).
        adapters: its LoRA adapters.
        drafter: name of its draft model.
    """

    name: str
    context_tokens: int
    client: EngineClient
    tokenizer: Tokenizer
    template: ChatTemplate
    constraints: ConstraintFactory
    tool_format: ToolFormat | None
    reasoning: ReasoningMarkers | None
    policy: ChatPolicy = field(default_factory=ChatPolicy)
    aliases: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    adapters: LiveAdapters = field(default_factory=LiveAdapters)
    drafter: str | None = None

    @cached_property
    def delimiter_ids(self) -> frozenset[int]:
        """Control tokens that a parser reads, so that the detokenizer must show them."""
        texts: set[str] = set() if self.tool_format is None else set(self.tool_format.marker_texts)
        if self.reasoning is not None:
            texts |= {self.reasoning.open, self.reasoning.close}
        found = (self.tokenizer.token_id(text) for text in texts)
        return frozenset(token_id for token_id in found if token_id is not None)

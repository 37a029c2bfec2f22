"""What happens to a request, in neutral words.

Two levels. *Engine events* carry token ids and come from a worker; every submitted work ends in exactly one
:class:`Finished` or :class:`Failed`. *Output events* carry text and come from a service; a stream of them ends with
exactly one :class:`Completed`, or raises an :class:`~mlxcel.core.errors.MlxcelError`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from mlxcel.core.chat import ToolCall
from mlxcel.core.errors import MlxcelError
from mlxcel.core.usage import Timings, Usage


class FinishReason(StrEnum):
    """Why a generation ended. Dialects have their own words for these."""

    EOS = "eos"  # the model ended its turn
    STOP_STRING = "stop_string"
    LENGTH = "length"  # max_tokens, or the window is full
    TOOL_CALLS = "tool_calls"
    LOOP = "loop"  # loop detection; shown as an ordinary stop
    CANCELLED = "cancelled"
    ERROR = "error"


# ---- engine level -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of the chosen token and of the best alternatives ``(token id, logprob)``, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """The prompt is in the KV cache; the first token follows."""

    id: str
    prompt_tokens: int
    cached_tokens: int
    queue_s: float
    prefill_s: float


@dataclass(frozen=True, slots=True)
class Tokens:
    """Newly generated tokens (one a step, more under speculation). ``logprobs`` is empty unless asked for.

    An end-of-generation token is not included.
    """

    id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The healthy end of a work. ``truncated`` is set when context shift or the window cut something."""

    id: str
    reason: FinishReason
    usage: Usage
    timings: Timings
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The unhealthy end of a work."""

    id: str
    error: MlxcelError


EngineEvent = PrefillDone | Tokens | Finished | Failed


# ---- output level -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PieceLogprob:
    """A token's text and bytes with its log-probability; ``top`` holds the alternatives in the same form, best first."""

    token_id: int
    text: str
    bytes: bytes
    logprob: float
    top: tuple[PieceLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt was processed."""

    prompt_tokens: int
    cached_tokens: int
    prefill_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Visible answer text. ``text`` may be empty when only ``logprobs`` of suppressed tokens are to be reported."""

    text: str
    logprobs: tuple[PieceLogprob, ...] = ()
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text of the thinking channel."""

    text: str
    logprobs: tuple[PieceLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """A call begins; ``index`` counts the calls of this answer from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of a call's arguments text."""

    index: int
    fragment: str


@dataclass(frozen=True, slots=True)
class Completed:
    """The end of an answer, with everything folded, so that a non-streaming surface needs only this event."""

    reason: FinishReason
    text: str
    usage: Usage
    timings: Timings
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    stop_string: str | None = None
    logprobs: tuple[PieceLogprob, ...] = ()
    token_ids: tuple[int, ...] = ()
    truncated: bool = False
    warnings: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class CompactionStarted:
    """The history is being summarised before the answer begins."""

    input_tokens_before: int


@dataclass(frozen=True, slots=True)
class CompactionCompleted:
    """The history was summarised; the answer's own events follow.

    Attributes:
        summary: text that takes the place of the older part.
        keep_from: index of the first piece of the history that is kept whole.
        keep_user: index of an earlier piece whose user turn is kept as well (the latest one); None when there is none.
    """

    summary: str
    keep_from: int
    keep_user: int | None
    input_tokens_before: int
    input_tokens_after: int


AnswerEvent = (
    Started
    | TextDelta
    | ReasoningDelta
    | ToolCallStarted
    | ToolCallDelta
    | CompactionStarted
    | CompactionCompleted
    | Completed
)


@dataclass(frozen=True, slots=True)
class ChoiceEvent:
    """An event of one of several answers to the same request; a request for one answer never sees it."""

    index: int
    event: AnswerEvent


OutputEvent = AnswerEvent | ChoiceEvent

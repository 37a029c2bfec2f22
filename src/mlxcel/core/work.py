"""What the engine schedules: token-level work, and the data that crosses to a runner. No text, no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlxcel.core.events import TokenLogprob
from mlxcel.core.jobs import Priority
from mlxcel.core.ports import Constraint
from mlxcel.core.sampling import LoopDetection, SamplingParams


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Use of the prefix cache by one work.

    ``namespace`` keeps tenants, adapters, templates and media apart; works share state only inside one namespace.
    ``boundaries`` are prompt offsets (in tokens) where a state snapshot is worth keeping, ascending.
    """

    read: bool = True
    write: bool = True
    namespace: str = ""
    boundaries: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ThinkingPlan:
    """Token-level control of a reasoning block.

    ``budget_tokens`` -1 is unlimited. When it is used up, the next tokens are forced to ``close_ids``. A constraint applies
    only after the block is closed. ``starts_inside``: the prompt already opened the block. ``can_be_ended``:
    the client may end the block while it is being written.
    """

    open_ids: tuple[int, ...]
    close_ids: tuple[int, ...]
    starts_inside: bool = False
    budget_tokens: int = -1
    can_be_ended: bool = False


@dataclass(frozen=True, slots=True)
class GenerateWork:
    """Generate tokens after ``prompt_ids``. ``id`` is unique among live works; ``max_tokens`` is already clamped (>= 1).

    ``remembered``: its slot keeps its tokens as a :class:`SlotRecord` when it ends well.
    """

    id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    stop_ids: frozenset[int] = frozenset()
    priority: Priority = Priority.NORMAL
    cache: CachePolicy = field(default_factory=CachePolicy)
    constraint: Constraint | None = None
    thinking: ThinkingPlan | None = None
    loop: LoopDetection | None = None
    adapters: tuple[tuple[int, float], ...] = ()
    keep_tokens: int = 0
    remembered: bool = True


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """What a slot computed last: its tokens, and what sets their cached state apart from that of others."""

    token_ids: tuple[int, ...]
    namespace: str = ""
    adapters: tuple[tuple[int, float], ...] = ()


# ---- engine -> runner ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowSpec:
    """Opens a row. ``prompt_ids`` seeds the penalty history; ``blocks`` are adopted (already filled) KV blocks.

    ``generated_ids`` is not empty when a row that had to give up its state is opened again: the history is then both, and a
    seeded random stream goes on after that many draws. The constraint has already accepted what it had to.
    """

    row_id: int
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    constraint: Constraint | None = None
    adapters: tuple[tuple[int, float], ...] = ()
    blocks: tuple[int, ...] = ()
    generated_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RowStep:
    """One row's share of a step.

    Attributes:
        row_id: which open row.
        token_ids: tokens to feed, at positions ``position`` onward. A decode step feeds the one token sampled last; a
            prefill piece feeds a slice of the prompt.
        new_blocks: KV blocks appended to the row's block table before this step.
        sample: sample from the logits after the last fed token.
        forced_id: when set, this token is taken instead of a draw (thinking budget).
        constrained: the row's constraint masks this draw and then accepts the chosen token.
        draft_ids: proposed continuation after ``token_ids``, to be verified in the same forward pass.
    """

    row_id: int
    token_ids: tuple[int, ...]
    position: int
    new_blocks: tuple[int, ...] = ()
    sample: bool = True
    forced_id: int | None = None
    constrained: bool = False
    draft_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The decision of one step: prefill pieces and decode rows run in one ragged batch."""

    rows: tuple[RowStep, ...]


@dataclass(frozen=True, slots=True)
class RowResult:
    """Tokens sampled for one row: none for an unfinished prefill, one normally, more when drafts were accepted.

    ``error`` ends this row only; its neighbours' results stand.
    """

    row_id: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """Results in the order of the plan's rows."""

    rows: tuple[RowResult, ...]

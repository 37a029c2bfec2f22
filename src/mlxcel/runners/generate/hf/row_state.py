"""One row at a time through a transformers model, its state kept in transformers' own cache object."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers import DynamicCache, PreTrainedModel

from mlxcel.core.errors import StartupError
from mlxcel.runners.generate.hf.self_check import PIECES, Reference

Feeding = Literal["pieces", "tokens", "recompute"]
"""How a row is continued: several tokens at a time, one by one, or from the start each time (no usable cache)."""

_CACHE_ARGUMENTS = ("cache", "past_key_values", "cache_params", "state")


ModuleSlot = tuple[torch.nn.Module, str]
"""A module's attribute that holds state of the sequence being run (recurrent_gemma keeps its state so)."""


@dataclass(slots=True)
class RowState:
    """State after ``length`` tokens.

    Attributes:
        cache: transformers' cache object.
        held: values of the model's :data:`ModuleSlot` list.
        token_ids: all tokens; kept for "recompute" only.
    """

    cache: Any = None
    length: int = 0
    held: list[torch.Tensor | None] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)

    def copy(self) -> RowState:
        return copy.deepcopy(self)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors of the state."""
        return sum(tensor.numel() * tensor.itemsize for tensor in _tensors((self.cache, self.held), set()))


class RowFeeder:
    """Feeds tokens to row states.

    Args:
        model: in evaluation mode, on its device.
        feeding: how rows are continued; see :func:`choose_feeder`.
        slots: state that the modules themselves hold; see :func:`find_slots`.
    """

    def __init__(self, model: PreTrainedModel, feeding: Feeding, slots: Sequence[ModuleSlot] = ()) -> None:
        self._model = model
        self._feeding = feeding
        self._slots = slots
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = next((name for name in _CACHE_ARGUMENTS if name in parameters), None)
        self._takes_positions = "position_ids" in parameters
        self._takes_logit_count = "logits_to_keep" in parameters

    @torch.inference_mode()
    def feed(self, state: RowState, token_ids: Sequence[int]) -> torch.Tensor:
        """Advance a row; returns float32 logits [1, vocab] after its last token."""
        if self._feeding == "recompute":
            state.token_ids.extend(token_ids)
            state.length += len(token_ids)
            return self._logits(torch.tensor([state.token_ids]), {"use_cache": False})
        whole = self._feeding == "pieces" or state.length == 0
        pieces = [tuple(token_ids)] if whole else [(token,) for token in token_ids]
        for (module, name), value in zip(self._slots, state.held or [None] * len(self._slots), strict=True):
            setattr(module, name, value)
        for piece in pieces:
            logits = self._feed_piece(state, piece)
        state.held = [getattr(module, name) for module, name in self._slots]
        return logits

    def _feed_piece(self, state: RowState, piece: Sequence[int]) -> torch.Tensor:
        inputs: dict[str, Any] = {"use_cache": True}
        if state.length == 0:
            state.cache = self._new_cache()
        if self._cache_argument is not None and state.cache is not None:
            inputs[self._cache_argument] = state.cache
        if self._takes_positions:
            inputs["position_ids"] = torch.arange(state.length, state.length + len(piece), device=self._model.device)[None]
        logits = self._logits(torch.tensor([piece]), inputs, state)
        state.length += len(piece)
        return logits

    def _logits(self, token_ids: torch.Tensor, inputs: dict[str, Any], state: RowState | None = None) -> torch.Tensor:
        if self._takes_logit_count:
            inputs["logits_to_keep"] = 1
        outputs = self._model(input_ids=token_ids.to(self._model.device), **inputs)
        if state is not None and self._cache_argument is not None:
            state.cache = getattr(outputs, self._cache_argument, None) or state.cache
        logits: torch.Tensor = outputs.logits[0, -1:].float()
        return logits

    def _new_cache(self) -> DynamicCache | None:
        """An empty cache, or None for models that make their own."""
        if self._cache_argument in ("cache", "past_key_values") and self._model._supports_default_dynamic_cache():
            return DynamicCache(config=self._model.config.get_text_config(decoder=True))
        return None


def choose_feeder(model: PreTrainedModel, reference: Reference) -> tuple[RowFeeder, str]:
    """A feeder that continues rows the fastest way that gives the plain forward pass's logits, and why not a faster one.

    Raises:
        StartupError: no way does, because a token's logits depend on the tokens after it.
    """
    reason = ""
    ways: tuple[Feeding, ...] = ("pieces", "tokens")
    for feeding in ways:
        try:
            feeder = RowFeeder(model, feeding, find_slots(model, reference))
            if _continues(feeder, reference):
                return feeder, reason
            problem = "gives other logits"
        except Exception as error:  # modules of any family may raise anything; the next way is tried
            problem = f"fails ({type(error).__name__})"
        reason = f"; continuing its cache by {feeding} {problem}"
    feeder = RowFeeder(model, "recompute")
    if not _continues(feeder, reference, PIECES[:1]):
        raise StartupError(f"{model.config.model_type} does not read from left to right, so it cannot generate text")
    return feeder, f"{reason}; every step runs the whole row again"


def find_slots(model: PreTrainedModel, reference: Reference) -> list[ModuleSlot]:
    """Attributes that hold another tensor after a pass with a cache than before; they are left empty."""
    before = _tensor_attributes(model)
    RowFeeder(model, "pieces").feed(RowState(), reference.prompts[0])
    slots = [slot for slot, value in _tensor_attributes(model).items() if before.get(slot) is not value]
    for module, name in slots:
        setattr(module, name, None)
    return slots


def _tensor_attributes(model: PreTrainedModel) -> dict[ModuleSlot, torch.Tensor]:
    """Plain attributes of tensor type; parameters and buffers live elsewhere."""
    return {
        (module, name): value
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    }


def _continues(feeder: RowFeeder, reference: Reference, steps: Sequence[tuple[int, ...]] = PIECES) -> bool:
    """Feed two rows in turns, in pieces."""
    states = [RowState() for _ in steps[0]]
    errors = []
    for pieces in steps:
        for row, count in enumerate(pieces):
            start = states[row].length
            logits = feeder.feed(states[row], reference.prompts[row][start : start + count])
            errors.append(reference.errors(row, start + count - 1, logits))
    return reference.accepts(torch.cat(errors))


def measure_state(feeder: RowFeeder, reference: Reference) -> tuple[int, int]:
    """``(fixed bytes, bytes per token)`` of a row's state, from two lengths."""
    short, long = RowState(), RowState()
    feeder.feed(short, reference.prompts[1])
    feeder.feed(long, reference.prompts[0])
    per_token = max(0, (long.size_bytes - short.size_bytes) // (long.length - short.length))
    return max(0, short.size_bytes - per_token * short.length), per_token


def _tensors(holder: object, seen: set[int]) -> Iterator[torch.Tensor]:
    """Every tensor reachable from a cache object."""
    if id(holder) in seen:
        return
    seen.add(id(holder))
    if isinstance(holder, torch.Tensor):
        yield holder
    elif isinstance(holder, Mapping):
        for value in holder.values():
            yield from _tensors(value, seen)
    elif isinstance(holder, list | tuple):
        for value in holder:
            yield from _tensors(value, seen)
    elif hasattr(holder, "__dict__"):
        yield from _tensors(vars(holder), seen)

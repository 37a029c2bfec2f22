"""Puts our paged attention under transformers' modules through its attention and mask interfaces.

transformers looks up an attention function by name in every layer, and calls a mask function registered under the same name
once per kind of layer. Our mask function returns the *rule* instead of a mask (:class:`MaskRule`); our attention function
appends the layer's keys and values to its paged pool and attends under that rule. A ragged batch of many rows then passes
through a model as one long sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import causal_mask_function

from mlxcel.runners.generate.decoder.attention import PagedKeysValues, RaggedLayout, Rule, Scoring

IMPLEMENTATION = "mlxcel_ragged"
_HOOK_ATTRIBUTE = "mlxcel_attention_hook"

MaskFunction = Callable[[int, int, torch.Tensor, torch.Tensor], torch.Tensor]


class MaskRule:
    """What transformers passes to a layer in place of a mask tensor; the function is over absolute positions of a row."""

    def __init__(self, function: MaskFunction) -> None:
        self._function = function

    def __call__(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        return self._function(0, 0, query_positions, key_positions)


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Keys and values of one attention call: heads, and the head sizes of keys and of values."""

    heads: int
    key_dim: int
    value_dim: int


class AttentionHook:
    """The attention of one model. Calls of a forward pass are told apart by their order, which never changes.

    Attributes:
        shapes: one per attention call; filled by the first forward pass, which runs without a pool.
        caches: the pool, one per attention call; empty before :meth:`allocate`.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Raises ValueError when the model does not take its attention from the interface."""
        self.shapes: list[LayerShape] = []
        self.caches: list[PagedKeysValues] = []
        self._layout: RaggedLayout | None = None
        self._call_index = 0
        AttentionInterface.register(IMPLEMENTATION, _attend)
        AttentionMaskInterface.register(IMPLEMENTATION, _mask_rule)
        for module in model.modules():
            vars(module)[_HOOK_ATTRIBUTE] = self
        model.set_attn_implementation(IMPLEMENTATION)
        if model.config._attn_implementation != IMPLEMENTATION:
            raise ValueError("its attention does not go through transformers' attention interface")

    def allocate(self, blocks: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
        """Make a pool of ``(blocks, tokens a block)`` for every call seen so far."""
        self.caches = [
            PagedKeysValues(blocks, shape.heads, (shape.key_dim, shape.value_dim), dtype, device) for shape in self.shapes
        ]

    def begin(self, layout: RaggedLayout | None) -> None:
        """Start a forward pass; None records shapes and attends within the pass only."""
        self._layout = layout
        self._call_index = 0
        if layout is None:
            self.shapes = []

    def attend(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scoring: Scoring) -> torch.Tensor:
        """Attention of [heads, tokens, head_dim] tensors; returns [tokens, heads, value_dim]."""
        if self._layout is None:
            self.shapes.append(LayerShape(keys.shape[0], keys.shape[2], values.shape[2]))
            return values.new_zeros(queries.shape[1], queries.shape[0], values.shape[2])
        cache = self.caches[self._call_index]
        self._call_index += 1
        cache.append(self._layout.slots, keys.transpose(0, 1), values.transpose(0, 1))
        attended = self._layout.attend(queries.transpose(0, 1), cache, scoring)
        return attended.view(queries.shape[1], queries.shape[0], -1)


def remove_hook(model: PreTrainedModel, implementation: str) -> None:
    """Give a model its own attention back and let go of the pool."""
    for module in model.modules():
        vars(module).pop(_HOOK_ATTRIBUTE, None)
    model.set_attn_implementation(implementation)


def _mask_rule(*, mask_function: MaskFunction, **_: object) -> MaskRule | None:
    """Registered as the mask function. None stands for plain causal attention."""
    return None if mask_function is causal_mask_function else MaskRule(mask_function)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: MaskRule | torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Registered as the attention function; tensors are [1, heads, tokens, head_dim], the result [1, tokens, heads, dim]."""
    if query.shape[0] != 1 or isinstance(attention_mask, torch.Tensor):
        raise ValueError("its attention is not a plain causal one over a single sequence")
    hook: AttentionHook = getattr(module, _HOOK_ATTRIBUTE)
    rule: Rule | None = attention_mask
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = hook.attend(query[0], key[0], value[0], Scoring(float(scale), rule, softcap, s_aux))
    return out[None], None

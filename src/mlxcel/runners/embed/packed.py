"""Many sequences in one forward pass without any padding.

The sequences are laid end to end, with positions that start anew in each; linear layers and norms do not see the borders,
and attention, which must, is computed per sequence. Sequences of equal length share one attention call. As nothing is
padded, a sequence's states cannot depend on its neighbours, and no work is done for padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

from mlxcel.core.vectors import TokenRow

_IMPLEMENTATION = "mlxcel_packed"
_HOLDER = "mlxcel_packing"

MaskFunction = Callable[[int, int, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one length: ``token_ids`` and ``type_ids`` are int64 [rows, length]; ``rows`` their places in the request."""

    rows: tuple[int, ...]
    token_ids: torch.Tensor
    type_ids: torch.Tensor

    @property
    def tokens(self) -> int:
        return self.count * self.length

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def length(self) -> int:
        return int(self.token_ids.shape[1])


class Trunk(Protocol):
    """Everything of a model up to its last hidden states."""

    def states(self, groups: Sequence[Group]) -> list[torch.Tensor]:
        """Hidden states of each group, float32 [rows, length, hidden]."""


def group_rows(rows: Sequence[TokenRow], device: torch.device) -> list[Group]:
    """Rows by length, shortest first."""
    places: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        places.setdefault(len(row.token_ids), []).append(index)
    return [
        Group(
            tuple(indices),
            torch.tensor([rows[index].token_ids for index in indices], dtype=torch.long, device=device),
            torch.tensor([rows[index].type_ids or (0,) * length for index in indices], dtype=torch.long, device=device),
        )
        for length, indices in sorted(places.items())
    ]


@dataclass(slots=True)
class _Packing:
    """The groups of the running forward pass, and the masks of their lengths under each rule."""

    bidirectional: bool
    groups: Sequence[Group] = ()
    masks: dict[tuple[int, int], torch.Tensor | None] = field(default_factory=dict)

    def mask(self, rule: MaskFunction | None, length: int, device: torch.device) -> torch.Tensor | None:
        """bool [length, length], True where a query may look; None when it may look everywhere."""
        if rule is None or self.bidirectional:
            return None
        key = (id(rule), length)
        if key not in self.masks:
            positions = torch.arange(length, device=device)
            seen = torch.as_tensor(rule(0, 0, positions[:, None], positions[None, :]), device=device)
            seen = seen.expand(length, length)
            self.masks[key] = None if bool(seen.all()) else seen
        return self.masks[key]


class PackedTrunk:
    """A transformers encoder or decoder as a trunk.

    Args:
        model: in evaluation mode; it takes ``position_ids`` and its attention goes through transformers' interface.
        bidirectional: look both ways whatever the model's own mask is.
        first_position: position number of each sequence's first token.

    Short convolutions look both ways too when the model is ``bidirectional``.

    Raises:
        ValueError: the model's attention does not go through the interface.
    """

    def __init__(self, model: PreTrainedModel, *, bidirectional: bool = False, first_position: int = 0) -> None:
        AttentionInterface.register(_IMPLEMENTATION, _attend)
        AttentionMaskInterface.register(_IMPLEMENTATION, _mask_rule)
        self._model = model
        self._first_position = first_position
        self._typed = getattr(model.config, "type_vocab_size", 0) > 1  # a table of one segment takes no second
        self._packing = _Packing(bidirectional)
        for module in model.modules():
            vars(module)[_HOLDER] = self._packing
        model.set_attn_implementation(_IMPLEMENTATION)
        if model.config._attn_implementation != _IMPLEMENTATION:
            raise ValueError("its attention does not go through transformers' attention interface")
        for module in model.modules():
            if isinstance(module, Lfm2ShortConv):
                module.forward = partial(_convolve, module, self._packing)

    def states(self, groups: Sequence[Group]) -> list[torch.Tensor]:
        """See :meth:`Trunk.states`."""
        device = groups[0].token_ids.device
        positions = [torch.arange(group.length, device=device).repeat(group.count) for group in groups]
        token_ids = torch.cat([group.token_ids.flatten() for group in groups])
        inputs: dict[str, Any] = {
            "input_ids": token_ids[None],
            "position_ids": torch.cat(positions)[None] + self._first_position,
            "attention_mask": torch.ones_like(token_ids)[None],  # keeps transformers from guessing packed sequences
        }
        if self._typed:
            inputs["token_type_ids"] = torch.cat([group.type_ids.flatten() for group in groups])[None]
        self._packing.groups = groups
        self._packing.masks.clear()
        with torch.inference_mode():
            hidden: torch.Tensor = self._model(**inputs, use_cache=False).last_hidden_state[0].float()
        parts = torch.split(hidden, [group.tokens for group in groups])
        return [part.view(group.count, group.length, -1) for group, part in zip(groups, parts, strict=True)]


def _mask_rule(*, mask_function: MaskFunction, **_: object) -> _Rule:
    """Registered as the mask function: layers get the rule itself in place of a mask."""
    return _Rule(mask_function)


@dataclass(frozen=True, slots=True)
class _Rule:
    function: MaskFunction


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: _Rule | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Registered as the attention function; tensors are [1, heads, tokens, head_dim], the result [1, tokens, heads, dim]."""
    packing: _Packing = vars(module)[_HOLDER]
    rule = None if attention_mask is None else attention_mask.function
    out = query.new_empty(query.shape[2], query.shape[1], value.shape[3])
    start = 0
    for group in packing.groups:
        end = start + group.tokens
        shape = (group.count, group.length)
        attended = torch.nn.functional.scaled_dot_product_attention(
            _rows(query, start, end, shape),
            _rows(key, start, end, shape),
            _rows(value, start, end, shape),
            attn_mask=packing.mask(rule, group.length, query.device),
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        out[start:end].view(*shape, *out.shape[1:]).copy_(attended.transpose(1, 2))
        start = end
    return out[None], None


def _convolve(module: Lfm2ShortConv, packing: _Packing, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
    """LFM2's gated short convolution, per sequence; [1, tokens, hidden].

    Looking both ways, the kernel is centred on its token (LFM2.5-Embedding); else it ends there, as in the decoder.
    """
    before, gate, inner = module.in_proj(hidden_states).chunk(3, dim=-1)
    gated = before * inner
    width = module.conv_kernel_size
    left = (width - 1) // 2 if packing.bidirectional else width - 1
    parts = []
    for group, part in zip(packing.groups, torch.split(gated[0], [group.tokens for group in packing.groups]), strict=True):
        rows = part.view(group.count, group.length, -1).transpose(1, 2)
        padded = torch.nn.functional.pad(rows, (left, width - 1 - left))
        mixed = torch.nn.functional.conv1d(padded, module.conv.weight, module.conv.bias, groups=rows.shape[1])
        parts.append(mixed.transpose(1, 2).reshape(group.tokens, -1))
    out: torch.Tensor = module.out_proj(gate * torch.cat(parts)[None])
    return out


def _rows(states: torch.Tensor, start: int, end: int, shape: tuple[int, int]) -> torch.Tensor:
    """A group's part of [1, heads, tokens, dim] as [rows, heads, length, dim]."""
    return torch.unflatten(states[0, :, start:end], 1, shape).transpose(0, 1)

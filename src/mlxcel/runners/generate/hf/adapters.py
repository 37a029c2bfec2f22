"""LoRA adapters on the linear modules of a transformers model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from mlxcel.core.errors import StartupError
from mlxcel.runners.generate.lora.bank import AdapterBank
from mlxcel.runners.generate.lora.files import LowRank


def hook_adapters(model: PreTrainedModel, bank: AdapterBank, *, head_sees_outputs_only: bool) -> None:
    """Let every linear module that an adapter changes add the updates of its tokens.

    Args:
        head_sees_outputs_only: the vocabulary projection runs only for the tokens whose logits are wanted.

    Raises:
        StartupError: an adapter changes what the model does not have as a linear module, or an expert, which sees some
            tokens only.
    """
    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        if name not in bank.names or not isinstance(module, torch.nn.Linear):
            continue
        if ".experts." in name:
            raise StartupError(f"--lora: {name} is an expert; adapters of experts are not served")
        updates = bank.claim([(name, tuple(module.weight.shape))])
        module.register_forward_hook(_adding(bank, updates, outputs_only=head_sees_outputs_only and module is head))
    bank.check_claimed()


def _adding(bank: AdapterBank, updates: Mapping[int, LowRank], *, outputs_only: bool) -> Callable[..., torch.Tensor]:
    def add(module: torch.nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        x, y = inputs[0].flatten(0, -2), output.flatten(0, -2)
        return bank.add(updates, x, y, outputs_only=outputs_only).view(output.shape)

    return add

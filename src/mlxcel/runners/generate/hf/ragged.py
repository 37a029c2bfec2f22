"""A transformers model as a ragged decoder: all rows of a step flattened into one sequence, with our paged KV underneath."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import PreTrainedModel

from mlxcel.runners.generate.batch import RaggedBatch
from mlxcel.runners.generate.decoder.attention import RaggedLayout
from mlxcel.runners.generate.decoder.transfer import export_block, import_block
from mlxcel.runners.generate.hf.attention_hook import AttentionHook
from mlxcel.runners.generate.lora.bank import AdapterBank
from mlxcel.runners.generate.memory import BlockCount
from mlxcel.runners.generate.options import BLOCK_TOKENS


def takes_logit_indices(model: PreTrainedModel) -> bool:
    """Whether the model computes the logits of chosen tokens only."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


class HfDecoder:
    """Implements :class:`~mlxcel.runners.generate.batch.Decoder` with transformers' own modules.

    Args:
        model: in evaluation mode, on its device.
        block_count: blocks of the pool as a function of its bytes per token.
        bank: LoRA adapters that the modules apply.

    Raises:
        ValueError: the model cannot run this way; half a sentence that says why.
    """

    def __init__(self, model: PreTrainedModel, block_count: BlockCount, bank: AdapterBank) -> None:
        parameters = inspect.signature(model.forward).parameters
        if "position_ids" not in parameters:
            raise ValueError("it does not take positions")
        self._model = model
        self._takes_logit_indices = takes_logit_indices(model)
        self._bank = bank
        self._device = model.device
        self._dtype = model.dtype
        self._hook = AttentionHook(model)
        logits = self._forward(torch.tensor([1, 2]), torch.tensor([0, 1]), torch.tensor([1]))
        if not self._hook.shapes:
            raise ValueError("it has no attention layers")
        self.vocab_size = logits.shape[-1]
        self.block_tokens = BLOCK_TOKENS
        self.bytes_per_token = self._dtype.itemsize * sum(
            shape.heads * (shape.key_dim + shape.value_dim) for shape in self._hook.shapes
        )
        self.block_count = block_count(self.bytes_per_token)
        self._hook.allocate((self.block_count, BLOCK_TOKENS), self._dtype, self._device)

    @torch.inference_mode()
    def forward(self, batch: RaggedBatch) -> torch.Tensor:
        """See :meth:`Decoder.forward <mlxcel.runners.generate.batch.Decoder.forward>`."""
        self._bank.begin(batch)
        self._hook.begin(RaggedLayout(batch, BLOCK_TOKENS, self._dtype, self._device))
        return self._forward(batch.token_ids.long(), batch.positions.long(), batch.logit_indices.long())

    def export_block(self, block: int) -> bytes:
        """See :class:`~mlxcel.core.ports.BlockTransfer`."""
        return export_block(self._hook.caches, block)

    def import_block(self, block: int, data: bytes) -> None:
        """See :class:`~mlxcel.core.ports.BlockTransfer`."""
        import_block(self._hook.caches, block, data)

    def _forward(self, token_ids: torch.Tensor, positions: torch.Tensor, logit_indices: torch.Tensor) -> torch.Tensor:
        """Logits float32 [outputs, vocab]. An all-ones padding mask keeps transformers from guessing packed sequences."""
        inputs: dict[str, Any] = {
            "input_ids": token_ids.to(self._device)[None],
            "position_ids": positions.to(self._device)[None],
            "attention_mask": torch.ones(1, len(token_ids), dtype=torch.long, device=self._device),
            "use_cache": False,
        }
        wanted = logit_indices.to(self._device)
        some_wanted = len(logit_indices) > 0
        if self._takes_logit_indices:
            inputs["logits_to_keep"] = wanted if some_wanted else 1
        with torch.inference_mode():
            logits: torch.Tensor = self._model(**inputs).logits[0]
        if not some_wanted:
            return logits[:0].float()
        return (logits if self._takes_logit_indices else logits[wanted]).float()

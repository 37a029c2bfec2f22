"""Loads a transformers model and decides by trial how to run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from mlxcel.core.errors import StartupError
from mlxcel.core.ports import ModelInfo, ModelRunner
from mlxcel.runners.generate.choice import RunnerChoice
from mlxcel.runners.generate.hf.adapters import hook_adapters
from mlxcel.runners.generate.hf.attention_hook import remove_hook
from mlxcel.runners.generate.hf.loading import load_config, load_model, settle_rope
from mlxcel.runners.generate.hf.ragged import HfDecoder, takes_logit_indices
from mlxcel.runners.generate.hf.row_state import choose_feeder, measure_state
from mlxcel.runners.generate.hf.self_check import Reference, check_ragged
from mlxcel.runners.generate.hf.stateful import StatefulRunner
from mlxcel.runners.generate.lora.bank import AdapterBank
from mlxcel.runners.generate.lora.files import open_adapters
from mlxcel.runners.generate.memory import kv_budget_bytes, pool_block_count
from mlxcel.runners.generate.options import RunnerOptions
from mlxcel.runners.generate.paged import paged_runner, state_fingerprint
from mlxcel.runners.generate.sampler import Sampler
from mlxcel.runners.generate.window import declared_window_tokens, window_tokens

if TYPE_CHECKING:
    from mlxcel.runners.weights import Checkpoint


def build_transformers_runner(
    checkpoint: Checkpoint, options: RunnerOptions, dtype: torch.dtype, device: torch.device, why: str
) -> ModelRunner:
    """Load the model; batch it over paged KV when that reproduces its plain forward pass, else keep a cache per row.

    Args:
        why: why no native decoder serves it.

    Raises:
        StartupError: transformers cannot load or run it, or it is no causal model.
    """
    config = load_config(checkpoint, options)
    context_tokens = window_tokens(options, declared_window_tokens(config.to_dict()))
    settle_rope(config, context_tokens)
    model = load_model(checkpoint, config, options, dtype, device)
    try:
        reference = Reference.of(model)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError) as error:
        raise StartupError(f"transformers' forward pass of {config.model_type} fails with this config: {error}") from error
    bank = AdapterBank(open_adapters(options.adapters), model.dtype, device)
    hook_adapters(model, bank, head_sees_outputs_only=takes_logit_indices(model))
    own_implementation = model.config._attn_implementation
    try:
        decoder = HfDecoder(model, lambda bytes_per_token: pool_block_count(options, context_tokens, bytes_per_token), bank)
        check_ragged(decoder, reference)
    except Exception as error:  # modules of any family may raise anything; the slower path is then taken
        failure = f"its modules fail under our attention ({type(error).__name__})"
        problem = str(error) if isinstance(error, ValueError) else failure
        remove_hook(model, own_implementation)
        why = f"{why}; not batched: {problem}"
        return _stateful_runner(model, bank, checkpoint, options, reference, context_tokens, why)
    choice = RunnerChoice("transformers", f"{why}; batched over paged KV")
    return paged_runner(decoder, checkpoint, options, choice, context_tokens, device)


def _stateful_runner(
    model: PreTrainedModel,
    bank: AdapterBank,
    checkpoint: Checkpoint,
    options: RunnerOptions,
    reference: Reference,
    context_tokens: int,
    why: str,
) -> StatefulRunner:
    feeder, drawback = choose_feeder(model, reference)
    state_bytes, bytes_per_token = measure_state(feeder, reference)
    choice = RunnerChoice("transformers-stateful", why + drawback)
    vocab_size = reference.logits[0].shape[-1]
    info = ModelInfo(
        name=options.name,
        fingerprint=state_fingerprint(checkpoint, options, choice, bytes_per_token),
        vocab_size=vocab_size,
        context_tokens=context_tokens,
        state="snapshot",
        bytes_per_token=bytes_per_token,
        state_bytes=state_bytes,
        max_rows=options.max_rows,
    )
    return StatefulRunner(feeder, Sampler(vocab_size, model.device), info, choice, kv_budget_bytes(options), bank)

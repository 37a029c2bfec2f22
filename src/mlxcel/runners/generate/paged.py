"""What every path shares when it makes a runner: the fingerprint and the runner over a loaded decoder."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

from mlxcel.core.ports import BlockTransfer, ModelInfo
from mlxcel.runners.generate.batch import Decoder
from mlxcel.runners.generate.choice import RunnerChoice
from mlxcel.runners.generate.lora.files import adapter_fingerprints
from mlxcel.runners.generate.options import RunnerOptions
from mlxcel.runners.generate.runner import PagedRunner, TransferringRunner
from mlxcel.runners.generate.sampler import Sampler

if TYPE_CHECKING:
    from mlxcel.runners.weights import Checkpoint


def paged_runner(
    decoder: Decoder,
    checkpoint: Checkpoint,
    options: RunnerOptions,
    choice: RunnerChoice,
    context_tokens: int,
    device: torch.device,
) -> PagedRunner:
    """A runner over a loaded decoder."""
    info = ModelInfo(
        name=options.name,
        fingerprint=state_fingerprint(checkpoint, options, choice, decoder.bytes_per_token),
        vocab_size=decoder.vocab_size,
        context_tokens=context_tokens,
        block_tokens=decoder.block_tokens,
        block_count=decoder.block_count,
        bytes_per_token=decoder.bytes_per_token,
        max_rows=options.max_rows,
        supports_drafts=True,
    )
    sampler = Sampler(decoder.vocab_size, device)
    if isinstance(decoder, BlockTransfer):
        return TransferringRunner(decoder, sampler, info, choice, len(options.adapters))
    return PagedRunner(decoder, sampler, info, choice, len(options.adapters))


def state_fingerprint(checkpoint: Checkpoint, options: RunnerOptions, choice: RunnerChoice, bytes_per_token: int) -> str:
    """Digest of everything that decides what a cached KV state holds, its storage format included."""
    adapters = adapter_fingerprints(options.adapters)
    storage = (*options.kv_types, str(bytes_per_token))
    parts = (checkpoint.fingerprint, options.dtype, options.device, choice.path, repr(options.rope), *storage, *adapters)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]

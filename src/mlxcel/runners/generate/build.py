"""Makes a runner for a checkpoint: picks the device, the dtype and the path, and loads."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from mlxcel.core.errors import StartupError
from mlxcel.core.ports import ModelInfo, ModelRunner
from mlxcel.runners.generate.batch import Decoder
from mlxcel.runners.generate.choice import RunnerChoice
from mlxcel.runners.generate.decoder.spec import DecoderSpec, spec_from_config
from mlxcel.runners.generate.options import RunnerOptions
from mlxcel.runners.generate.providers import Declined, DecoderProvider, DecoderRequest, default_providers
from mlxcel.runners.generate.runner import PagedRunner
from mlxcel.runners.generate.sampler import Sampler

if TYPE_CHECKING:
    from mlxcel.runners.weights import Checkpoint

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def build_runner(
    checkpoint: Checkpoint, options: RunnerOptions, providers: Sequence[DecoderProvider] | None = None
) -> ModelRunner:
    """Load a causal model.

    Args:
        checkpoint: open checkpoint; read during this call only.
        options: how to run it.
        providers: native decoders in order of preference; None takes :func:`default_providers`.

    Raises:
        StartupError: nothing here can run the model as asked; the message says why.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    device = pick_device(options)
    config = options.rope.apply(checkpoint.config) if options.rope.active else checkpoint.config
    spec = None if options.backend == "transformers" else spec_from_config(config)
    if spec is not None:
        return _native_runner(spec, checkpoint, options, device, default_providers() if providers is None else providers)
    raise StartupError(f"model type {config.get('model_type')!r} has no native decoder; start without --backend native")


def pick_device(options: RunnerOptions) -> torch.device:
    """The device asked for. Raises StartupError when it is not there."""
    if options.device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise StartupError("--device cuda: this machine or this build of torch has no CUDA device; use --device auto")
    if options.device == "mps" and not torch.backends.mps.is_available():
        raise StartupError("--device mps: this machine has no Metal device; use --device auto")
    return torch.device(options.device)


def window_tokens(options: RunnerOptions, model_tokens: int) -> int:
    """The window of one row: what was asked for, at most the model's."""
    return min(options.context_tokens or model_tokens, model_tokens)


def _native_runner(
    spec: DecoderSpec,
    checkpoint: Checkpoint,
    options: RunnerOptions,
    device: torch.device,
    providers: Sequence[DecoderProvider],
) -> PagedRunner:
    request = DecoderRequest(
        spec, checkpoint, options, device, _DTYPES.get(options.dtype), window_tokens(options, spec.context_tokens)
    )
    declined: list[str] = []
    for provider in providers:
        offer = provider.offer(request)
        if isinstance(offer, Declined):
            declined.append(f"{provider.name}: {offer.reason}")
            continue
        reason = f"{spec.family} is a native family" + "".join(f"; {line}" for line in declined)
        choice = RunnerChoice(provider.name, reason)
        return paged_runner(offer, checkpoint, options, choice, request.context_tokens, device)
    raise StartupError("no native decoder serves this model: " + "; ".join(declined))


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
        fingerprint=state_fingerprint(checkpoint, options, choice),
        vocab_size=decoder.vocab_size,
        context_tokens=context_tokens,
        block_tokens=decoder.block_tokens,
        block_count=decoder.block_count,
        bytes_per_token=decoder.bytes_per_token,
        max_rows=options.max_rows,
        supports_drafts=True,
    )
    return PagedRunner(decoder, Sampler(decoder.vocab_size, device), info, choice)


def state_fingerprint(checkpoint: Checkpoint, options: RunnerOptions, choice: RunnerChoice) -> str:
    """Digest of everything that decides what a cached KV state holds."""
    parts = (checkpoint.fingerprint, options.dtype, options.device, choice.path, repr(options.rope))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]

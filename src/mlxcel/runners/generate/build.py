"""Makes a runner for a checkpoint: picks the device, the dtype and the path, and loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from mlxcel.core.errors import StartupError
from mlxcel.core.ports import ModelRunner
from mlxcel.runners.generate.choice import RunnerChoice
from mlxcel.runners.generate.decoder.spec import DecoderSpec, spec_from_config
from mlxcel.runners.generate.options import RunnerOptions
from mlxcel.runners.generate.paged import paged_runner
from mlxcel.runners.generate.providers import (
    Declined,
    DecoderProvider,
    DecoderRequest,
    default_dtype,
    default_providers,
    keeps_kv_in,
)
from mlxcel.runners.generate.window import window_tokens

if TYPE_CHECKING:
    from mlxcel.runners.weights import Checkpoint

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def build_runner(
    checkpoint: Checkpoint, options: RunnerOptions, providers: Sequence[DecoderProvider] | None = None
) -> ModelRunner:
    """Load a causal model: through a native decoder when one serves it, else through transformers' modules.

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
    spec = native_spec(checkpoint, options)
    if isinstance(spec, Declined):
        why = spec.reason
    else:
        runner = _native_runner(spec, checkpoint, options, device, default_providers() if providers is None else providers)
        if not isinstance(runner, Declined):
            return runner
        why = runner.reason
    if options.backend == "native":
        raise StartupError(f"no native decoder for this model ({why}); start with --backend auto")
    dtype = _DTYPES.get(options.dtype) or default_dtype(device)
    if not keeps_kv_in(dtype, options):
        raise StartupError(
            "--cache-type-k, --cache-type-v: only the compiled kernels keep KV in another type than the compute type, and "
            f"they do not serve this model ({why}); leave both at f16"
        )
    from mlxcel.runners.generate.hf.select import build_transformers_runner  # imports transformers, which takes a second

    return build_transformers_runner(checkpoint, options, dtype, device, why)


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


def native_spec(checkpoint: Checkpoint, options: RunnerOptions) -> DecoderSpec | Declined:
    """The description that native decoders are built from, or why there is none. Reads no weights."""
    if options.backend == "transformers":
        return Declined("transformers was asked for")
    config: Mapping[str, Any] = options.rope.apply(checkpoint.config) if options.rope.active else checkpoint.config
    if config.get("quantization_config"):
        return Declined("its weights are in a quantised format that transformers decodes")
    spec = spec_from_config(config)
    if spec is None:
        return Declined(f"{config.get('model_type')} has no native decoder")
    missing = set(spec.tensor_names()).difference(checkpoint.names())
    if missing:
        return Declined(f"the checkpoint has no tensor {min(missing)}")
    return spec


def _native_runner(
    spec: DecoderSpec,
    checkpoint: Checkpoint,
    options: RunnerOptions,
    device: torch.device,
    providers: Sequence[DecoderProvider],
) -> ModelRunner | Declined:
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
    return Declined("; ".join(declined))

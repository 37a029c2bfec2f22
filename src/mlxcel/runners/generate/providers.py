"""The seam between a model's description and the decoders that can run it.

A provider looks at a :class:`DecoderRequest` and returns a decoder, or says why it declines; the first that accepts serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from mlxcel.runners.generate.batch import Decoder
from mlxcel.runners.generate.decoder.spec import DecoderSpec
from mlxcel.runners.generate.decoder.torch_decoder import TorchDecoder
from mlxcel.runners.generate.lora.files import open_adapters
from mlxcel.runners.generate.memory import pool_block_count
from mlxcel.runners.generate.options import BLOCK_TOKENS, RunnerOptions

if TYPE_CHECKING:
    from mlxcel.runners.weights import Checkpoint


_KV_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class DecoderRequest:
    """A native model that wants a decoder.

    Attributes:
        dtype: None leaves the choice to the provider ("auto"); float32 asks for exact arithmetic.
        context_tokens: longest row.
    """

    spec: DecoderSpec
    checkpoint: Checkpoint
    options: RunnerOptions
    device: torch.device
    dtype: torch.dtype | None
    context_tokens: int

    def block_count(self, bytes_per_token: int) -> int:
        """Blocks of ``BLOCK_TOKENS`` tokens for a KV pool whose tokens take ``bytes_per_token`` over all layers."""
        return pool_block_count(self.options, self.context_tokens, bytes_per_token)


@dataclass(frozen=True, slots=True)
class Declined:
    """Why a provider does not serve a request, in half a sentence."""

    reason: str


class DecoderProvider(Protocol):
    """Builds decoders of one kind. ``name`` is the path shown by ``mlxcel inspect``."""

    name: str

    def offer(self, request: DecoderRequest) -> Decoder | Declined:
        """Load the decoder, or decline."""


class TorchProvider:
    """Plain torch; serves every native model on every device."""

    name = "torch"

    def offer(self, request: DecoderRequest) -> Decoder | Declined:
        dtype = request.dtype or default_dtype(request.device)
        if not keeps_kv_in(dtype, request.options):
            return Declined(f"it keeps KV in its compute type, {str(dtype).removeprefix('torch.')}")
        return TorchDecoder(
            request.spec,
            request.checkpoint,
            dtype=dtype,
            device=request.device,
            context_tokens=request.context_tokens,
            block_tokens=BLOCK_TOKENS,
            block_count=request.block_count(request.spec.kv_bytes_per_token(dtype.itemsize)),
            adapters=open_adapters(request.options.adapters),
        )


def keeps_kv_in(dtype: torch.dtype, options: RunnerOptions) -> bool:
    """Whether a decoder that stores KV in its compute type can store it as asked."""
    return all(kind == "auto" or _KV_DTYPES.get(kind) == dtype for kind in options.kv_types)


def default_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the hardware multiplies it, else float16 on accelerators and float32 on the CPU."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if device.type == "mps":
        return torch.float16
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported() else torch.float32


def default_providers() -> tuple[DecoderProvider, ...]:
    """Providers in order of preference."""
    from mlxcel.runners.kernels.provider import KernelProvider  # builds on this module

    return (KernelProvider(), TorchProvider())

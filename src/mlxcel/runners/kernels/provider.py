"""Offers the compiled decoder for the native families on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mlxcel.runners.generate.batch import Decoder
from mlxcel.runners.generate.providers import Declined, default_dtype
from mlxcel.runners.kernels.decoder import KernelOptions, KvMode, NativeDecoder, kv_bytes_per_token
from mlxcel.runners.kernels.library import choose_level, load_library

if TYPE_CHECKING:
    from mlxcel.runners.generate.decoder.spec import DecoderSpec
    from mlxcel.runners.generate.providers import DecoderRequest


class KernelProvider:
    """The compiled decoder; declines where the library, the device or the shapes do not fit."""

    name = "kernels"

    def offer(self, request: DecoderRequest) -> Decoder | Declined:
        if request.options.kernels == "off":
            return Declined("switched off")
        if request.options.adapters:
            return Declined("they do not apply LoRA adapters")
        if request.device.type != "cpu":
            return Declined("they run on the CPU only")
        library = load_library()
        if isinstance(library, str):
            return Declined(library)
        level = choose_level(library)
        if isinstance(level, str):
            return Declined(level)
        unfit = unfit_shape(request.spec)
        if unfit:
            return Declined(unfit)
        own: KvMode = "fp32" if request.dtype == torch.float32 else "bf16"
        k_mode, v_mode = (own if kind == "auto" else kind for kind in request.options.kv_types)
        options = KernelOptions(
            level,
            block_count=request.block_count(kv_bytes_per_token(request.spec, k_mode, v_mode)),
            threads=request.options.threads,
            dense_dtype=request.dtype or default_dtype(request.device),
            exact=request.dtype == torch.float32,
            k_mode=k_mode,
            v_mode=v_mode,
        )
        return NativeDecoder(library, request.spec, request.checkpoint, options)


def unfit_shape(spec: DecoderSpec) -> str:
    """Why the kernels cannot hold a model's shapes; empty when they can."""
    if spec.head_dim % 16 or spec.head_dim > 512:
        return f"heads of {spec.head_dim} are not a multiple of 16 up to 512"
    if spec.group_size > 32:
        return f"{spec.group_size} query heads share a key/value head, more than 32"
    return ""

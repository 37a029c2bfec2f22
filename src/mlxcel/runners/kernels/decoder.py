"""The compiled CPU decoder behind the decoder protocol."""

from __future__ import annotations

import ctypes
import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from mlxcel.core.errors import GenerationFailed
from mlxcel.runners.generate.batch import RaggedBatch
from mlxcel.runners.generate.decoder.spec import DecoderSpec
from mlxcel.runners.kernels.library import (
    ACTIVATIONS,
    BLOCK_TOKENS,
    EMBEDDING,
    FINAL_NORM,
    GLOBAL,
    HEAD,
    BatchArrays,
    Config,
    KernelError,
    KvType,
    Level,
    Library,
    MatrixSlot,
    VectorSlot,
)
from mlxcel.runners.kernels.sources import MatrixReader

if TYPE_CHECKING:
    from mlxcel.runners.weights import Checkpoint

KvMode = Literal["bf16", "fp32", "int8"]
_KV_TYPES = {"bf16": KvType.BF16, "fp32": KvType.F32, "int8": KvType.INT8}
_KV_ELEMENT_BYTES = {"bf16": 2, "fp32": 4, "int8": 1}  # int8 has a float32 scale per vector besides
_FIRST_POSITIONS = 1024


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """How a compiled decoder is to run.

    Attributes:
        level: instruction set.
        block_count: KV blocks of ``BLOCK_TOKENS`` tokens.
        threads: members of its team, the calling thread included; 0 is one per processor this process may use.
        dense_dtype: of unquantised matrices that are stored in float32; 16-bit ones stay as they are.
        exact: compute with float32 weights throughout, decoding quantised ones.
        k_mode, v_mode: storage of keys and values; int8 has one scale per token and head.
    """

    level: Level
    block_count: int
    threads: int = 0
    dense_dtype: torch.dtype = torch.float32
    exact: bool = False
    k_mode: KvMode = "bf16"
    v_mode: KvMode = "bf16"


class NativeDecoder:
    """Implements :class:`~mlxcel.runners.generate.batch.Decoder` with one library call a step, which releases the GIL.

    Raises:
        KernelError: the library cannot hold this model (head sizes that are no multiple of 16).
        MemoryError: not enough memory for the weights or the pool.
    """

    supports_adapters = False

    def __init__(self, library: Library, spec: DecoderSpec, checkpoint: Checkpoint, options: KernelOptions) -> None:
        self.vocab_size = spec.vocab_size
        self.block_tokens = BLOCK_TOKENS
        self.block_count = options.block_count
        self._library = library
        self._rope = spec.rope
        self._cosines = torch.empty(0)
        self._sines = torch.empty(0)
        self._logits = torch.empty(0, spec.vocab_size)
        config = _config(spec, options)
        self.bytes_per_token = int(library.kv_bytes_per_token(config))
        self._model = library.create(config)
        weakref.finalize(self, library.destroy, self._model)
        self._load(spec, MatrixReader(checkpoint, options.dense_dtype, exact=options.exact))
        self._grow_tables(_FIRST_POSITIONS)

    @property
    def weight_bytes(self) -> int:
        """Memory of the packed weights."""
        return int(self._library.weight_bytes(self._model))

    def forward(self, batch: RaggedBatch) -> torch.Tensor:
        """See :meth:`Decoder.forward <mlxcel.runners.generate.batch.Decoder.forward>`.

        Raises:
            GenerationFailed: the batch does not fit the model or the pool; nothing was computed.
        """
        outputs = len(batch.logit_indices)
        if outputs > len(self._logits):
            self._logits = torch.empty(outputs, self.vocab_size)
        longest = int(batch.context_lens.max())
        if longest > len(self._cosines):
            self._grow_tables(longest)
        tensors = [
            tensor.contiguous()
            for tensor in (batch.token_ids, batch.positions, batch.row_starts, batch.block_tables, batch.logit_indices)
        ]
        arrays = BatchArrays(
            len(batch.token_ids),
            len(batch.row_starts) - 1,
            batch.block_tables.shape[1],
            outputs,
            *(tensor.data_ptr() for tensor in tensors),
            self._cosines.data_ptr(),
            self._sines.data_ptr(),
            self._cosines.shape[1],
            len(self._cosines),
        )
        try:
            self._library.forward(self._model, arrays, self._logits.data_ptr())
        except KernelError as error:
            raise GenerationFailed(f"the step could not run: {error}") from error
        return self._logits[:outputs]

    def export_block(self, block: int) -> bytes:
        """See :class:`~mlxcel.core.ports.BlockTransfer`."""
        return ctypes.string_at(self._library.block_address(self._model, block), self.bytes_per_token * BLOCK_TOKENS)

    def import_block(self, block: int, data: bytes) -> None:
        """See :class:`~mlxcel.core.ports.BlockTransfer`."""
        if len(data) != self.bytes_per_token * BLOCK_TOKENS:
            raise ValueError(f"a KV block has {self.bytes_per_token * BLOCK_TOKENS} bytes, not {len(data)}")
        ctypes.memmove(self._library.block_address(self._model, block), data, len(data))

    def _grow_tables(self, position_count: int) -> None:
        """Rotary tables for at least so many positions; they double, so that a long row rebuilds them a few times only."""
        cosines, sines = self._rope.tables(max(position_count, 2 * len(self._cosines)))
        self._cosines, self._sines = torch.from_numpy(cosines).contiguous(), torch.from_numpy(sines).contiguous()

    def _load(self, spec: DecoderSpec, reader: MatrixReader) -> None:
        for layer in range(spec.layer_count):
            names = spec.layer_names(layer)
            for slot, name, biased in (
                (MatrixSlot.Q, names.q, spec.qkv_bias),
                (MatrixSlot.K, names.k, spec.qkv_bias),
                (MatrixSlot.V, names.v, spec.qkv_bias),
                (MatrixSlot.O, names.o, spec.o_bias),
                (MatrixSlot.GATE, names.gate, spec.mlp_bias),
                (MatrixSlot.UP, names.up, spec.mlp_bias),
                (MatrixSlot.DOWN, names.down, spec.mlp_bias),
            ):
                self._set_matrix(reader, layer, slot, name, biased)
            self._set_vector(reader, layer, VectorSlot.INPUT_NORM, names.input_norm)
            self._set_vector(reader, layer, VectorSlot.MLP_NORM, names.mlp_norm)
            if spec.qk_norm:
                self._set_vector(reader, layer, VectorSlot.Q_NORM, names.q_norm)
                self._set_vector(reader, layer, VectorSlot.K_NORM, names.k_norm)
        self._set_matrix(reader, GLOBAL, EMBEDDING, spec.embedding_name)
        self._set_vector(reader, GLOBAL, FINAL_NORM, spec.final_norm_name)
        if spec.tied:
            self._library.tie_head(self._model)
        else:
            self._set_matrix(reader, GLOBAL, HEAD, spec.head_name)
        self._library.ready(self._model)

    def _set_matrix(self, reader: MatrixReader, layer: int, slot: int, name: str, biased: bool = False) -> None:
        matrix = reader.matrix(name, biased=biased)
        self._library.set_matrix(self._model, layer, slot, matrix.source)

    def _set_vector(self, reader: MatrixReader, layer: int, slot: int, name: str) -> None:
        vector = reader.vector(f"{name}.weight")
        self._library.set_vector(self._model, layer, slot, vector.data_ptr(), len(vector))


def kv_bytes_per_token(spec: DecoderSpec, k_mode: KvMode, v_mode: KvMode) -> int:
    """Bytes that keys and values of one token take over all layers."""
    vectors = spec.layer_count * spec.kv_head_count
    return sum(
        vectors * (spec.head_dim * _KV_ELEMENT_BYTES[mode] + (4 if mode == "int8" else 0)) for mode in (k_mode, v_mode)
    )


def usable_processors() -> int:
    """Processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _config(spec: DecoderSpec, options: KernelOptions) -> Config:
    # The library copies both arrays while the model is created, and ctypes keeps them alive that long.
    return Config(
        level=options.level,
        threads=options.threads or usable_processors(),
        layers=spec.layer_count,
        hidden=spec.hidden_size,
        intermediate=spec.intermediate_size,
        vocab=spec.vocab_size,
        heads=spec.head_count,
        kv_heads=spec.kv_head_count,
        head_dim=spec.head_dim,
        activation=ACTIVATIONS[spec.activation],
        block_count=options.block_count,
        k_type=_KV_TYPES[options.k_mode],
        v_type=_KV_TYPES[options.v_mode],
        windows=(ctypes.c_int32 * spec.layer_count)(*spec.windows),
        rotates=(ctypes.c_uint8 * spec.layer_count)(*spec.rope_layers),
        norm_eps=spec.norm_eps,
        attention_scale=spec.attention_scale,
        embedding_multiplier=spec.embedding_multiplier,
        residual_multiplier=spec.residual_multiplier,
        logit_multiplier=spec.logit_multiplier,
    )

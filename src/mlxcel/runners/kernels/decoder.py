"""The compiled CPU decoder behind the decoder protocol."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from mlxcel.core.errors import GenerationFailed, StartupError
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

    supports_adapters = True

    def __init__(self, library: Library, spec: DecoderSpec, checkpoint: Checkpoint, options: KernelOptions) -> None:
        self.vocab_size = spec.vocab_size
        self.block_tokens = BLOCK_TOKENS
        self.block_count = options.block_count
        self._library = library
        self._rope = spec.rope
        self._cosines = torch.empty(0)
        self._sines = torch.empty(0)
        self._logits = torch.empty(0, spec.vocab_size)
        self._adapter_count = 0
        self._owner = 0
        self._places = _places(spec)
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
            IndexError: a row names an adapter that was not loaded.
        """
        if self._owner != threading.get_ident():
            self._owner = threading.get_ident()
            keep_torch_single_threaded_here()
        outputs = len(batch.logit_indices)
        adapter_scales = self._adapter_scales(batch)
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
            self._adapter_count,
            None if adapter_scales is None else adapter_scales.data_ptr(),
        )
        try:
            self._library.forward(self._model, arrays, self._logits.data_ptr())
        except KernelError as error:
            raise GenerationFailed(f"the step could not run: {error}") from error
        return self._logits[:outputs]

    def add_adapter(self, updates: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> int:
        """Load a LoRA adapter; rows use it through ``RaggedBatch.row_adapters``.

        Args:
            updates: per matrix name (without ``.weight``), ``down`` [rank, in] and ``up`` [out, rank]: the matrix becomes
                ``matrix + scale * up @ down`` with the scale of the row. An adapter's ``alpha / rank`` is part of ``up``.

        Returns:
            The adapter's id, counted from 0.

        Raises:
            StartupError: a name is not a matrix of a layer, or a shape does not fit it; nothing was loaded.
        """
        for name, (down, up) in updates.items():
            if name not in self._places:
                raise StartupError(f"the adapter updates {name}, which is not a projection of this model's layers")
            out_features, in_features = self._places[name].shape
            if down.shape != (up.shape[1], in_features) or up.shape[0] != out_features:
                raise StartupError(f"the adapter's update of {name} does not fit a matrix of {out_features} x {in_features}")
        for name, (down, up) in updates.items():
            place = self._places[name]
            down, up = down.float().contiguous(), up.float().contiguous()
            self._library.set_update(
                self._model, self._adapter_count, place.layer, place.slot, len(down), down.data_ptr(), up.data_ptr()
            )
        self._adapter_count += 1
        return self._adapter_count - 1

    def _adapter_scales(self, batch: RaggedBatch) -> torch.Tensor | None:
        """Scales [rows, adapters] of a step; None when no row uses an adapter."""
        if not any(scale for row in batch.row_adapters for _, scale in row):
            return None
        scales = torch.zeros(len(batch.row_adapters), self._adapter_count)
        for row, active in enumerate(batch.row_adapters):
            for adapter, scale in active:
                scales[row, adapter] = scale
        return scales

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
        for name, place in self._places.items():
            self._set_matrix(reader, place.layer, place.slot, name, place.biased)
        for layer in range(spec.layer_count):
            names = spec.layer_names(layer)
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


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a layer's matrix belongs; ``shape`` is (out, in)."""

    layer: int
    slot: MatrixSlot
    shape: tuple[int, int]
    biased: bool


def _places(spec: DecoderSpec) -> dict[str, _Place]:
    """Every matrix of every layer by its checkpoint name."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    places = {}
    for layer in range(spec.layer_count):
        names = spec.layer_names(layer)
        places[names.q] = _Place(layer, MatrixSlot.Q, (spec.q_size, hidden), spec.qkv_bias)
        places[names.k] = _Place(layer, MatrixSlot.K, (spec.kv_size, hidden), spec.qkv_bias)
        places[names.v] = _Place(layer, MatrixSlot.V, (spec.kv_size, hidden), spec.qkv_bias)
        places[names.o] = _Place(layer, MatrixSlot.O, (hidden, spec.q_size), spec.o_bias)
        places[names.gate] = _Place(layer, MatrixSlot.GATE, (inner, hidden), spec.mlp_bias)
        places[names.up] = _Place(layer, MatrixSlot.UP, (inner, hidden), spec.mlp_bias)
        places[names.down] = _Place(layer, MatrixSlot.DOWN, (hidden, inner), spec.mlp_bias)
    return places


def kv_bytes_per_token(spec: DecoderSpec, k_mode: KvMode, v_mode: KvMode) -> int:
    """Bytes that keys and values of one token take over all layers."""
    vectors = spec.layer_count * spec.kv_head_count
    return sum(
        vectors * (spec.head_dim * _KV_ELEMENT_BYTES[mode] + (4 if mode == "int8" else 0)) for mode in (k_mode, v_mode)
    )


def keep_torch_single_threaded_here() -> None:
    """Give torch one thread for operations of the calling thread; others keep what they have.

    After a parallel operation torch's threads go on polling for some milliseconds. Between two steps that is a sampler's
    operation, and the polling takes the processors from the decoder's own team: it doubled the time of a step.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of this thread, and of all that start later
    if threads > 1:
        restore = threading.Thread(target=torch.set_num_threads, args=(threads,))
        restore.start()
        restore.join()


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

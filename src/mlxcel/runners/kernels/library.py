"""The compiled library: its C structures, and which instruction-set level it runs at.

The library is optional. Where it is missing (installed without a compiler), every question here has an answer and the caller
falls back to torch.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_uint8, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

ABI = 2
BLOCK_TOKENS = 16
LEVEL_VARIABLE = "MLXCEL_KERNELS"
_PATH = Path(__file__).parent / "_native.so"


class Level(IntEnum):
    """Instruction sets, in order of preference."""

    PORTABLE = 0
    NEON = 1
    AVX2 = 2
    AVX_VNNI = 3
    AVX512 = 4
    AMX = 5


class Format(IntEnum):
    """How the elements of a weight matrix are stored."""

    U4 = 0
    U8 = 1
    BF16 = 2
    F16 = 3
    F32 = 4


class KvType(IntEnum):
    """How keys or values are stored in the pool."""

    BF16 = 0
    F32 = 1
    INT8 = 2


class MatrixSlot(IntEnum):
    """Places of a layer's matrices."""

    Q = 0
    K = 1
    V = 2
    O = 3  # noqa: E741
    GATE = 4
    UP = 5
    DOWN = 6


class VectorSlot(IntEnum):
    """Places of a layer's norm weights."""

    INPUT_NORM = 0
    MLP_NORM = 1
    Q_NORM = 2
    K_NORM = 3


GLOBAL = -1  # the layer of the embedding and of the head (matrices 0 and 1) and of the final norm (vector 0)
EMBEDDING, HEAD, FINAL_NORM = 0, 1, 0
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu2": 3}


class Config(ctypes.Structure):
    """``mlx_config`` of native/api.h."""

    _fields_: ClassVar[Any] = [
        *((name, c_int32) for name in ("level", "threads", "layers", "hidden", "intermediate", "vocab")),
        *((name, c_int32) for name in ("heads", "kv_heads", "head_dim", "activation", "block_count", "k_type", "v_type")),
        ("windows", POINTER(c_int32)),
        ("rotates", POINTER(c_uint8)),
        *((name, c_float) for name in ("norm_eps", "attention_scale", "embedding_multiplier", "residual_multiplier")),
        ("logit_multiplier", c_float),
    ]


class MatrixSource(ctypes.Structure):
    """``mlx_matrix`` of native/api.h."""

    _fields_: ClassVar[Any] = [
        ("format", c_int32),
        ("out", c_int32),
        ("inputs", c_int32),
        ("group", c_int32),
        ("data", c_void_p),
        ("scales", c_void_p),
        ("minimums", c_void_p),
        ("bias", c_void_p),
    ]


class BatchArrays(ctypes.Structure):
    """``mlx_batch`` of native/api.h."""

    _fields_: ClassVar[Any] = [
        *((name, c_int32) for name in ("tokens", "rows", "max_blocks", "outputs")),
        *((name, c_void_p) for name in ("token_ids", "positions", "row_starts", "block_tables", "logit_indices")),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("rotary_half", c_int32),
        ("position_count", c_int32),
        ("adapters", c_int32),
        ("adapter_scales", c_void_p),
    ]


class KernelError(RuntimeError):
    """The library refused a call; the message is its own."""


@dataclass(frozen=True, slots=True)
class KernelStatus:
    """What ``/props`` and ``mlxcel inspect`` report.

    Attributes:
        available: the library is there and may be used.
        level: instruction-set level in use (``"amx"``), empty when not available.
        reason: why not, when not available.
    """

    available: bool
    level: str
    reason: str = ""


class Library:
    """Typed entry points of the loaded library."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        def entry(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
            function = getattr(handle, name)
            function.restype = result
            function.argtypes = arguments
            return function  # type: ignore[no-any-return]

        self._last_error = entry("mlx_last_error", c_char_p)
        self._level_available = entry("mlx_level_available", c_int32, c_int32)
        self._level_name = entry("mlx_level_name", c_char_p, c_int32)
        self._create = entry("mlx_model_create", c_void_p, POINTER(Config))
        self.destroy = entry("mlx_model_destroy", None, c_void_p)
        self._set_matrix = entry("mlx_model_set_matrix", c_int32, c_void_p, c_int32, c_int32, POINTER(MatrixSource))
        self._set_vector = entry("mlx_model_set_vector", c_int32, c_void_p, c_int32, c_int32, c_void_p, c_int32)
        self._tie_head = entry("mlx_model_tie_head", c_int32, c_void_p)
        self._set_update = entry(
            "mlx_model_set_update", c_int32, c_void_p, c_int32, c_int32, c_int32, c_int32, c_void_p, c_void_p
        )
        self._ready = entry("mlx_model_ready", c_int32, c_void_p)
        self._forward = entry("mlx_model_forward", c_int32, c_void_p, POINTER(BatchArrays), c_void_p)
        self._block = entry("mlx_model_block", c_void_p, c_void_p, c_int32)
        self.weight_bytes = entry("mlx_model_weight_bytes", c_int64, c_void_p)
        self.kv_bytes_per_token = entry("mlx_kv_bytes_per_token", c_int64, POINTER(Config))
        self._linear = entry(
            "mlx_linear",
            c_int32,
            c_int32,
            c_int32,
            POINTER(MatrixSource),
            c_void_p,
            c_int32,
            c_void_p,
            c_int32,
            POINTER(c_double),
        )

    def levels(self) -> list[Level]:
        """Levels that this build and this processor have, best last."""
        return [level for level in Level if self._level_available(level)]

    def level_name(self, level: Level) -> str:
        name: bytes = self._level_name(level)
        return name.decode("ascii")

    def create(self, config: Config) -> int:
        """A new model. Raises KernelError."""
        model: int | None = self._create(config)
        if not model:
            raise self._error()
        return model

    def set_matrix(self, model: int, layer: int, slot: int, source: MatrixSource) -> None:
        self._check(self._set_matrix(model, layer, slot, source))

    def set_vector(self, model: int, layer: int, slot: int, address: int, count: int) -> None:
        self._check(self._set_vector(model, layer, slot, address, count))

    def tie_head(self, model: int) -> None:
        self._check(self._tie_head(model))

    def set_update(
        self, model: int, adapter: int, layer: int, slot: int, rank: int, down_address: int, up_address: int
    ) -> None:
        self._check(self._set_update(model, adapter, layer, slot, rank, down_address, up_address))

    def ready(self, model: int) -> None:
        self._check(self._ready(model))

    def forward(self, model: int, batch: BatchArrays, logits_address: int) -> None:
        self._check(self._forward(model, batch, logits_address))

    def block_address(self, model: int, block: int) -> int:
        """Where a KV block lies. Raises ValueError for a block outside the pool."""
        address: int | None = self._block(model, block)
        if not address:
            raise ValueError(f"the pool has no block {block}")
        return address

    def linear(
        self, level: Level, threads: int, source: MatrixSource, x_address: int, rows: int, y_address: int, repeats: int = 1
    ) -> float:
        """One matrix product by itself; returns the shortest of ``repeats`` times in seconds."""
        best_s = c_double()
        self._check(self._linear(level, threads, source, x_address, rows, y_address, repeats, best_s))
        return best_s.value

    def _check(self, code: int) -> None:
        if code:
            raise self._error()

    def _error(self) -> KernelError:
        message: bytes = self._last_error()
        return KernelError(message.decode("utf-8", "replace"))


@cache
def load_library() -> Library | str:
    """The library, or in half a sentence why there is none."""
    if not _PATH.exists():
        return "the package was installed without compiled kernels"
    try:
        handle = ctypes.CDLL(str(_PATH))
        abi = handle.mlx_abi()
    except (OSError, AttributeError) as error:
        return f"the compiled kernels cannot be loaded ({error})"
    if abi != ABI:
        return "the compiled kernels belong to another version; reinstall the package"
    return Library(handle)


def choose_level(library: Library, wanted: str | None = None) -> Level | str:
    """The level to run at: ``wanted`` or ``MLXCEL_KERNELS`` by name, else the best there is; or why there is none."""
    levels = library.levels()
    name = wanted or os.environ.get(LEVEL_VARIABLE, "")
    if name == "off":
        return f"{LEVEL_VARIABLE} is off"
    if not name:
        return levels[-1]
    for level in levels:
        if library.level_name(level) == name:
            return level
    known = ", ".join(library.level_name(level) for level in levels)
    return f"kernel level {name!r} is not available here; this machine has {known}"


def status() -> KernelStatus:
    """Whether compiled kernels are in use and at which level."""
    library = load_library()
    if isinstance(library, str):
        return KernelStatus(False, "", library)
    level = choose_level(library)
    if isinstance(level, str):
        return KernelStatus(False, "", level)
    return KernelStatus(True, library.level_name(level))

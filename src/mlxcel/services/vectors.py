"""Arithmetic on finished vectors: dimensions, scaling."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mlxcel.core.errors import GenerationFailed, InvalidRequest
from mlxcel.core.vectors import Vector

Floats = NDArray[np.float32]

MIN_NORM, MAX_NORM = -1, 2**31 - 1
_INT16_MAX = 32760.0  # the scale that llama-server gives the largest component
_TINY = 1e-9


def finish(vector: Vector, *, dimensions: int | None, norm: int) -> Vector:
    """Cut each row to its first components, then scale it; rows of zeros stay zeros.

    Raises:
        GenerationFailed: a component is not finite.
    """
    rows: Floats = np.frombuffer(vector.data, dtype="<f4").reshape(vector.shape)
    if dimensions is not None:
        rows = rows[..., :dimensions]
    scaled = scale(rows, norm) if np.isfinite(rows).all() else rows
    if not np.isfinite(scaled).all():
        raise GenerationFailed("the model computed a vector that is not finite")
    return Vector(np.ascontiguousarray(scaled, dtype="<f4").tobytes(), scaled.shape)


def scale(rows: Floats, norm: int) -> Floats:
    """Scale the last axis: -1 not at all, 0 so that the largest magnitude is 32760, p > 0 to a p-norm of 1."""
    if norm < 0:
        return rows
    magnitudes = np.abs(rows.astype(np.float64))
    largest = magnitudes.max(-1, keepdims=True)
    if norm == 0:
        factor = _INT16_MAX / np.where(largest > 0, largest, 1.0)
    elif norm == 2:
        factor = 1.0 / np.maximum(np.sqrt((magnitudes**2).sum(-1, keepdims=True)), _TINY)
    else:  # dividing by the largest first keeps high powers within range
        unit = magnitudes / np.where(largest > 0, largest, 1.0)
        length = largest * (unit**norm).sum(-1, keepdims=True) ** (1.0 / norm)
        factor = 1.0 / np.where(length > 0, length, 1.0)
    scaled: Floats = (rows * factor).astype(np.float32)
    return scaled


def check_norm(norm: int | None) -> None:
    """
    Raises:
        InvalidRequest: a number that names no scaling.
    """
    if norm is not None and not MIN_NORM <= norm <= MAX_NORM:
        raise InvalidRequest("'embd_normalize' must be -1, 0, 1, 2 or a higher norm", param="embd_normalize")

"""Random numbers by counter: each row owns a stream, and a draw depends on its seed and position alone.

SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators") as a hash of seed and counter. A row
that is closed and opened again with the longer prompt continues its stream.
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

U64Array = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_STREAMS = np.uint64(2)  # numbers per position

TOKEN_STREAM = 0
XTC_STREAM = 1


def stream_key(seed: int | None) -> np.uint64:
    """The key of a row's stream; without a seed, a fresh one."""
    number = secrets.randbits(64) if seed is None else seed % 2**64
    key: np.uint64 = _mix(np.array([number], dtype=np.uint64))[0]
    return key


def uniforms(keys: U64Array, positions: U64Array, stream: int) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each row, with 53 random bits.

    Args:
        keys: [rows] from :func:`stream_key`.
        positions: [rows] absolute position of the token that is drawn.
        stream: :data:`TOKEN_STREAM` or :data:`XTC_STREAM`.
    """
    counters = positions * _STREAMS + np.uint64(stream + 1)
    return (_mix(keys + counters * _GOLDEN) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: U64Array) -> U64Array:
    """The output function of SplitMix64; arithmetic modulo 2**64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))

"""Scaling of vectors: every norm gives what its name says, zeros stay zeros, and nothing becomes NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mlxcel.core.errors import GenerationFailed
from mlxcel.core.vectors import Vector
from mlxcel.services.vectors import finish, scale

Floats = np.ndarray[Any, np.dtype[np.float32]]
COMPONENT = st.floats(-(2.0**100), 2.0**100, width=32).map(lambda value: 0.0 if abs(value) < 1e-6 else value)
VECTORS = arrays(np.float32, st.integers(1, 24), elements=COMPONENT)


@given(vector=VECTORS, norm=st.integers(1, 12))
@settings(deadline=None)
def test_a_p_norm_of_one(vector: Floats, norm: int) -> None:
    scaled = scale(vector, norm).astype(np.float64)
    length = (np.abs(scaled) ** norm).sum() ** (1 / norm)
    assert length == pytest.approx(1, rel=1e-3) if vector.any() else not scaled.any()


@given(vector=VECTORS)
@settings(deadline=None)
def test_the_largest_magnitude_fits_int16_and_minus_one_changes_nothing(vector: Floats) -> None:
    assert np.abs(scale(vector, 0)).max() == pytest.approx(32760, rel=1e-5) if vector.any() else not scale(vector, 0).any()
    np.testing.assert_array_equal(scale(vector, -1), vector)


@given(vector=VECTORS, norm=st.integers(-1, 5), data=st.data())
@settings(deadline=None)
def test_dimensions_come_before_the_scaling(vector: Floats, norm: int, data: st.DataObject) -> None:
    kept = data.draw(st.integers(1, len(vector)))
    result = finish(Vector(vector.astype("<f4").tobytes(), vector.shape), dimensions=kept, norm=norm)
    assert result.shape == (kept,)
    np.testing.assert_allclose(np.frombuffer(result.data, "<f4"), scale(vector[:kept], norm), rtol=1e-6)


def test_rows_of_a_matrix_are_scaled_one_by_one() -> None:
    matrix = np.array([[3, 4], [0, 0], [0, 2]], dtype="<f4")
    result = finish(Vector(matrix.tobytes(), matrix.shape), dimensions=None, norm=2)
    shown = np.frombuffer(result.data, "<f4").reshape(result.shape)
    np.testing.assert_allclose(shown, np.array([[0.6, 0.8], [0.0, 0.0], [0.0, 1.0]]), atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_component_that_is_not_finite_is_an_error(bad: float) -> None:
    vector = np.array([1, bad], dtype="<f4")
    with pytest.raises(GenerationFailed, match="not finite"):
        finish(Vector(vector.tobytes(), vector.shape), dimensions=None, norm=2)

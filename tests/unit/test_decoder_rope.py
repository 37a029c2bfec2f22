"""Frequencies of every scaling method, against transformers' own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from mlxcel.core.errors import StartupError
from mlxcel.runners.generate.decoder.rope import build_rope, rope_parameters, scaled_window_tokens
from mlxcel.runners.generate.options import RopeOverrides

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        LLAMA3,
        YARN,
        YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
        YARN | {"mscale": 0.7, "mscale_all_dim": 1.0},
        YARN | {"attention_factor": 1.25},
        YARN | {"partial_rotary_factor": 0.5},
    ],
    ids=lambda scaling: "-".join(str(value) for value in scaling.values()),
)
def test_frequencies_equal_transformers(scaling: dict[str, Any]) -> None:
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=2048, rope_parameters={"rope_theta": 5e5} | scaling
    )
    expected, scale = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config)
    rope = build_rope({"rope_theta": 5e5} | scaling, 64, 2048)
    np.testing.assert_array_equal(rope.inverse_frequencies, expected.numpy())
    assert rope.table_scale == pytest.approx(scale, abs=1e-12)


def test_plain_tables_hold_cosine_and_sine_of_position_times_frequency() -> None:
    cosines, sines = build_rope({"rope_type": "default", "rope_theta": 100.0}, 8, 64).tables(50)
    angles = np.arange(50)[:, None] * 100.0 ** (-np.arange(0, 8, 2) / 8)
    np.testing.assert_allclose(cosines, np.cos(angles), atol=1e-5)
    np.testing.assert_allclose(sines, np.sin(angles), atol=1e-5)


def test_dynamic_scaling_rotates_a_late_position_as_a_sequence_that_ends_there() -> None:
    parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=32, rope_parameters=parameters)
    cosines, _ = build_rope(parameters, 16, 32).tables(100)
    for position in (0, 31, 32, 33, 99):
        frequencies, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=position + 1)
        np.testing.assert_allclose(cosines[position], np.cos(position * frequencies.numpy()), atol=2e-5)


def test_dynamic_tables_do_not_depend_on_how_many_positions_are_asked_for() -> None:
    rope = build_rope({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, 16, 32)
    np.testing.assert_array_equal(rope.tables(40)[0], rope.tables(200)[0][:40])


def test_unknown_method_is_named() -> None:
    with pytest.raises(ValueError, match="'spiral'"):
        build_rope({"rope_type": "spiral", "rope_theta": 1e4}, 16, 32)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"rope_theta": 5.0}, {"rope_theta": 5.0, "rope_type": "default"}),
        ({}, {"rope_theta": 10_000.0, "rope_type": "default"}),
        (
            {"rope_theta": 5.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_theta": 5.0, "rope_type": "linear", "factor": 2.0},
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}, "rope_theta": 5.0},
            {"rope_theta": 7.0, "rope_type": "linear", "factor": 2.0},
        ),
    ],
)
def test_old_and_new_spellings_read_alike(config: dict[str, Any], expected: dict[str, Any]) -> None:
    assert rope_parameters(config) == expected


@pytest.mark.parametrize(
    ("parameters", "window"),
    [
        ({"rope_type": "default"}, 1000),
        ({"rope_type": "linear", "factor": 4.0}, 4000),
        ({"rope_type": "dynamic", "factor": 2.0}, 2000),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000}, 4000),
        ({"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 25}, 1000),
        (LLAMA3, 1000),
    ],
)
def test_window_grows_with_the_methods_that_stretch_it(parameters: dict[str, Any], window: int) -> None:
    assert scaled_window_tokens(parameters, 1000) == window


CONFIG = {"rope_theta": 1e4, "max_position_embeddings": 1000, "rope_scaling": LLAMA3, "vocab_size": 7}


class TestOverrides:
    def test_inactive_by_default(self) -> None:
        assert not RopeOverrides().active
        assert RopeOverrides(scale=2.0).active

    def test_a_scale_alone_is_linear_from_the_trained_window(self) -> None:
        changed = RopeOverrides(scale=2.0).apply(CONFIG)
        assert changed["rope_parameters"] == {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}
        assert changed["max_position_embeddings"] == 512
        assert changed["vocab_size"] == 7

    def test_freq_scale_is_the_inverse_of_scale(self) -> None:
        assert RopeOverrides(freq_scale=0.25).apply(CONFIG) == RopeOverrides(scale=4.0).apply(CONFIG)

    def test_none_switches_scaling_off(self) -> None:
        assert RopeOverrides(scaling="none").apply(CONFIG)["rope_parameters"]["rope_type"] == "default"

    def test_base_alone_keeps_the_scaling(self) -> None:
        changed = RopeOverrides(freq_base=7.0).apply(CONFIG)
        assert changed["rope_parameters"] == LLAMA3 | {"rope_theta": 7.0}
        assert changed["max_position_embeddings"] == 1000

    def test_yarn_takes_its_own_settings(self) -> None:
        overrides = RopeOverrides(
            scaling="yarn", scale=4.0, yarn_orig_ctx=256, yarn_attn_factor=1.5, yarn_beta_fast=16.0, yarn_ext_factor=0.0
        )
        assert overrides.apply(CONFIG)["rope_parameters"] == {
            "rope_theta": 1e4,
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 256,
            "attention_factor": 1.5,
            "beta_fast": 16.0,
            "extrapolation_factor": 0.0,
        }

    def test_yarn_without_extrapolation_is_linear(self) -> None:
        parameters = RopeOverrides(scaling="yarn", scale=4.0, yarn_ext_factor=0.0).apply(CONFIG)["rope_parameters"]
        linear = build_rope({"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}, 64, 512)
        np.testing.assert_allclose(
            build_rope(parameters, 64, 512).inverse_frequencies, linear.inverse_frequencies, rtol=1e-6
        )

    @pytest.mark.parametrize(
        ("overrides", "flag"),
        [
            (RopeOverrides(scale=0.0), "--rope-scale"),
            (RopeOverrides(freq_scale=-1.0), "--rope-freq-scale"),
            (RopeOverrides(freq_base=float("nan")), "--rope-freq-base"),
        ],
    )
    def test_impossible_values_name_their_flag(self, overrides: RopeOverrides, flag: str) -> None:
        with pytest.raises(StartupError, match=flag):
            overrides.apply(CONFIG)

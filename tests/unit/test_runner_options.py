"""Options of the command line as they reach the runner: position scaling, KV types and kernels."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from mlxcel.app.settings import runner_options
from mlxcel.cli.options import build_parser, resolve
from mlxcel.config.server import ServerConfig
from mlxcel.core.errors import StartupError
from mlxcel.runners.generate.build import build_runner
from mlxcel.runners.generate.options import RopeOverrides, RunnerOptions
from mlxcel.runners.kernels.library import load_library
from mlxcel.runners.weights import open_checkpoint
from mlxcel.testing.app import checkpoint_source
from mlxcel.testing.tiny_models import write_tiny_checkpoint


def parsed(*arguments: str, env: dict[str, str] | None = None) -> ServerConfig:
    parser: argparse.ArgumentParser = build_parser(ServerConfig, prog="mlxcel-server", description="")
    return resolve(ServerConfig, vars(parser.parse_args(list(arguments))), env or {})


def options(*arguments: str, env: dict[str, str] | None = None) -> RunnerOptions:
    return runner_options(parsed(*arguments, env=env), "m")


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint("llama", tmp_path_factory.mktemp("llama"))


def test_every_flag_of_position_scaling_reaches_the_runner() -> None:
    flags = "--rope-scaling yarn --rope-scale 4 --rope-freq-base 5e5 --rope-freq-scale 0.5 --yarn-orig-ctx 256"
    flags += " --yarn-ext-factor 1 --yarn-attn-factor 1.25 --yarn-beta-slow 2 --yarn-beta-fast 16"
    assert options(*flags.split()).rope == RopeOverrides("yarn", 4.0, 5e5, 0.5, 256, 1.0, 1.25, 2.0, 16.0)


def test_llama_servers_words_for_unset_change_nothing() -> None:
    flags = "--rope-scale 0 --rope-freq-base 0 --rope-freq-scale 0 --yarn-orig-ctx 0 --yarn-ext-factor -1"
    assert not options(*flags.split(), "--yarn-attn-factor", "-1.0").rope.active


def test_position_scaling_comes_from_the_environment_too() -> None:
    assert options(env={"LLAMA_ARG_ROPE_SCALE": "2"}).rope == RopeOverrides(scale=2.0)


@pytest.mark.parametrize("flags", [["--rope-scaling", "cubic"], ["--rope-scale", "-2"], ["--yarn-orig-ctx", "many"]])
def test_a_wrong_value_names_its_flag(flags: list[str]) -> None:
    with pytest.raises(StartupError, match=flags[0]):
        options(*flags)


@pytest.mark.parametrize("flags", ["--rope-scale 2", "--rope-freq-scale 0.5", "--rope-scaling yarn --rope-scale 2"])
def test_a_scaled_window_is_the_larger_one(tiny_llama: Path, flags: str) -> None:
    plain = checkpoint_source(tiny_llama).window_tokens
    assert checkpoint_source(tiny_llama, parsed(*flags.split())).window_tokens == 2 * plain


def test_kernels_and_kv_types_reach_the_runner() -> None:
    wanted = options("--kernels", "off", "--cache-type-k", "int8", "-ctv", "bf16")
    assert (wanted.kernels, wanted.kv_types) == ("off", ("int8", "bf16"))
    assert options("--cache-type-k", "f16").kv_types == ("auto", "auto")
    with pytest.raises(StartupError, match="--cache-type-k: must be one of"):
        options("--cache-type-k", "q8_0")


def test_int8_kv_takes_fewer_bytes_in_the_kernels(tiny_llama: Path) -> None:
    checkpoint = open_checkpoint(tiny_llama)
    if isinstance(load_library(), str):
        pytest.skip("the compiled kernels are not built here")
    sizes, prints = {}, set()
    for kinds in (("auto", "auto"), ("int8", "bf16"), ("bf16", "int8"), ("int8", "int8")):
        runner = build_runner(checkpoint, RunnerOptions(dtype="bf16", kv_types=kinds))
        sizes[kinds] = runner.info.bytes_per_token
        prints.add(runner.info.fingerprint)
        runner.shutdown()
    assert sizes["auto", "auto"] > sizes["int8", "bf16"] == sizes["bf16", "int8"] > sizes["int8", "int8"]
    assert len(prints) == len(sizes)


@pytest.mark.parametrize("backend", ["native", "transformers"])
def test_a_path_without_int8_kv_refuses_it(tiny_llama: Path, backend: str) -> None:
    wanted = RunnerOptions(dtype="fp32", kernels="off", backend=backend, kv_types=("int8", "int8"))  # type: ignore[arg-type]
    with pytest.raises(StartupError, match=r"compute type"):
        build_runner(open_checkpoint(tiny_llama), wanted)

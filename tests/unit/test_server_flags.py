"""Flags of the server that answer by themselves: llama-server's inert ones, the memory check, completion and lists."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from mlxcel.cli.inert import TABLE
from mlxcel.cli.main import main
from mlxcel.cli.serve import parse
from mlxcel.core.errors import StartupError
from mlxcel.testing.app import checkpoint_source
from mlxcel.testing.tiny_models import write_tiny_checkpoint


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint("llama", tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize(
    "line",
    ["-ngl 99", "--n-gpu-layers auto", "-fa on", "--jinja -cb --mmap", "--split-mode none", "-ub 512", "--cache-reuse 0"],
)
def test_values_that_change_nothing_are_taken(line: str) -> None:
    assert parse(line.split()) == parse([])


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("-ngl 0", "--n-gpu-layers 0: not supported; use --device"),
        ("--mlock", "--mlock: not supported; "),
        ("-ub 1024", "--ubatch-size 1024: not supported; use --prefill-chunk-size"),
        ("-nocb", "--no-cont-batching: not supported; use --no-batch"),
        ("--model-url http://x/y.gguf", "--model-url http://x/y.gguf: not supported; "),
        ("--cache-reuse 256", "--cache-reuse 256: not supported; "),
    ],
)
def test_values_that_would_are_refused_with_the_way_to_have_it(line: str, told: str) -> None:
    with pytest.raises(StartupError) as refused:
        parse(line.split())
    assert refused.value.message.startswith(told)


def test_every_refusal_says_what_to_do() -> None:
    assert all(item.harmless or len(item.instead) > 10 for item in TABLE)


def test_inert_options_do_not_swallow_the_values_of_others() -> None:
    assert parse(["--alias", "--mlock-free"[2:], "-c", "99"]).model.alias == "mlock-free"


def test_a_model_beyond_the_limit_does_not_start(tiny_llama: Path) -> None:
    with pytest.raises(StartupError, match=r"needs about .*weights .*--no-memory-check"):
        checkpoint_source(tiny_llama, parse(["--memory-limit", "100K"]))
    assert checkpoint_source(tiny_llama, parse(["--memory-limit", "100K", "--force"])).window_tokens


def test_the_limit_and_the_headroom_come_from_the_environment(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXCEL_MEMORY_LIMIT", "0.1M")
    monkeypatch.setenv("MLXCEL_HEADROOM_FACTOR", "1.5")
    config = parse([])
    assert (config.memory.limit_bytes, config.memory.headroom_factor) == (104857, 1.5)
    with pytest.raises(StartupError, match="needs about"):
        checkpoint_source(tiny_llama, config)


@pytest.mark.parametrize("limit", ["4M", "8M", "64M"])
def test_the_kv_cache_takes_no_more_than_the_limit_leaves(
    tiny_llama: Path, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["inspect", "-m", str(tiny_llama), "--json", "--memory-limit", limit, "-np", "64"]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert 0 < report["kv_bytes_total"] <= report["total_bytes"] <= report["budget_bytes"]


def test_inspect_shows_the_scaled_window(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    windows = []
    for flags in ([], ["--rope-scale", "4"]):
        assert main(["inspect", "-m", str(tiny_llama), "--json", *flags]) == 0
        windows.append(json.loads(capsys.readouterr().out)["context_tokens"])
    assert windows[1] == 4 * windows[0]


def test_an_estimate_is_printed_instead_of_serving(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "-m", str(tiny_llama), "--estimate-memory", "--memory-limit", "1K"]) == 0
    assert "total bytes" in capsys.readouterr().out


def test_the_completion_script_completes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["serve", "--completion-bash"]) == 0
    script = tmp_path / "completion.bash"
    script.write_text(capsys.readouterr().out)

    def complete(*words: str) -> set[str]:
        typed = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}"
        line = f'source {script}; {typed}; _mlxcel; echo "${{COMPREPLY[@]}}"'
        return set(subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout.split())

    assert complete("mlxcel", "ser") == {"serve"}
    assert {"--rope-scale", "--rope-scaling"} <= complete("mlxcel-server", "--rope")
    assert complete("mlxcel-server", "--kernels", "o") == {"off"}


def test_the_downloaded_models_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "-cl", "--model-store-root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""

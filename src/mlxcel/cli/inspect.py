"""``mlxcel inspect`` and ``mlxcel arch``: what would serve a model, and what it would take."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mlxcel.cli.options import build_parser, resolve
from mlxcel.config.memory import MemoryConfig
from mlxcel.config.model import ModelConfig
from mlxcel.config.option import option, parse_int, switch
from mlxcel.config.rope import RopeConfig
from mlxcel.config.scheduling import SchedulingConfig
from mlxcel.config.server import ServerConfig
from mlxcel.config.values import human_bytes


@dataclass(frozen=True, slots=True)
class OutputConfig:
    """Output"""

    json: bool = switch(False, "--json", help="print JSON")
    max_tokens: int = option(0, "--max-tokens", parse=parse_int(0), metavar="N", help="estimate for a context of N tokens")


@dataclass(frozen=True, slots=True)
class InspectConfig:
    """What ``inspect`` was told."""

    model: ModelConfig = field(default_factory=ModelConfig)
    rope: RopeConfig = field(default_factory=RopeConfig)
    scheduling: SchedulingConfig = field(default_factory=SchedulingConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    output: OutputConfig = field(default_factory=OutputConfig)


def run(arguments: Sequence[str]) -> int:
    """Print the serving path of a model and its memory estimate."""
    parser = build_parser(InspectConfig, prog="mlxcel inspect", description="Show how a model would be served.")
    config = resolve(InspectConfig, vars(parser.parse_args(list(arguments))), os.environ)
    server = ServerConfig(model=config.model, rope=config.rope, scheduling=config.scheduling, memory=config.memory)
    print_report(inspect_model(server, config.output.max_tokens), as_json=config.output.json)
    return 0


def print_report(report: dict[str, Any], *, as_json: bool = False) -> None:
    """Write a report to the terminal."""
    if as_json:
        print(json.dumps(report, indent=2))
        return
    for key, value in report.items():
        shown = human_bytes(value) if key.endswith(("_bytes", "_bytes_total")) else value
        print(f"{key.replace('_', ' '):<18} {shown}")


def inspect_model(server: ServerConfig, max_tokens: int = 0) -> dict[str, Any]:
    """The report as plain data.

    Args:
        max_tokens: estimate for a window of so many tokens; 0 for the window that the options give.

    Raises:
        StartupError: the model cannot be found, read or served.
    """
    from mlxcel.app import find_model
    from mlxcel.app.memory import estimate, with_kv_budget
    from mlxcel.app.settings import runner_options
    from mlxcel.app.source import model_window_tokens
    from mlxcel.runners.generate.build import native_spec
    from mlxcel.runners.generate.providers import Declined
    from mlxcel.runners.weights import open_checkpoint

    path = find_model(server)
    checkpoint = open_checkpoint(path)
    options = runner_options(server, path.stem)
    if max_tokens:
        options = dataclasses.replace(options, context_tokens=max_tokens)
    options = with_kv_budget(server.memory, checkpoint, options)
    spec = native_spec(checkpoint, options)
    served_natively = not isinstance(spec, Declined)
    return {
        "model": str(path),
        "format": checkpoint.kind,
        "model_type": checkpoint.config.get("model_type"),
        "architectures": checkpoint.config.get("architectures") or [],
        "context_tokens": model_window_tokens(checkpoint, options),
        "path": "native" if served_natively else "transformers",
        "reason": f"{checkpoint.config.get('model_type')} is a native family"
        if not isinstance(spec, Declined)
        else spec.reason,
        **dataclasses.asdict(estimate(server.memory, checkpoint, options)),
    }


def run_arch(arguments: Sequence[str]) -> int:
    """List the architectures that can be served."""
    from mlxcel.runners.generate.families import causal_model_types

    parser = argparse.ArgumentParser(prog="mlxcel arch", description="List the model types that can be served.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    as_json = parser.parse_args(list(arguments)).json
    table = causal_model_types()
    if as_json:
        print(json.dumps([{"model_type": name, "path": path} for name, path in table.items()], indent=2))
    else:
        print("\n".join(f"{name:<32} {path}" for name, path in table.items()))
    return 0

"""Where a model comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxcel.config.server import ServerConfig
from mlxcel.core.errors import StartupError
from mlxcel.core.ports import ModelRunner
from mlxcel.text.tokenizer import Tokenizer, load_tokenizer
from mlxcel.text.vocabulary import first_difference

if TYPE_CHECKING:
    from mlxcel.runners.generate.options import RunnerOptions
    from mlxcel.runners.weights import Checkpoint

from mlxcel.app.memory import check_memory, with_kv_budget
from mlxcel.app.settings import runner_options, uses_draft_model


@dataclasses.dataclass(frozen=True, slots=True)
class Draft:
    """A draft model; ``build`` is called on the owner thread."""

    name: str
    build: Callable[[], ModelRunner]


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Where a model comes from: its tokenizer, its configuration and a way to build its runner on the owner thread."""

    name: str
    aliases: tuple[str, ...]
    tokenizer: Tokenizer
    model_type: str
    window_tokens: int
    generation_config: dict[str, Any]
    build: Callable[[], ModelRunner]
    draft: Draft | None = None
    meta: dict[str, Any] = dataclasses.field(default_factory=dict)


def open_source(config: ServerConfig) -> Source:
    """Find the checkpoint and read everything but its weights.

    Raises:
        StartupError: one line that says what is wrong with the model argument or the checkpoint.
    """
    from mlxcel.runners.weights import open_checkpoint

    path = find_model(config)
    wanted = config.model.hf_repo or config.model.model
    checkpoint = open_checkpoint(path)
    names = tuple(sorted(name.strip() for name in config.model.alias.split(",") if name.strip()))
    name = names[0] if names else _display_name(wanted, path)
    options = with_kv_budget(config.memory, checkpoint, runner_options(config, name))
    check_memory(config.memory, checkpoint, options)
    tokenizer = load_tokenizer(path)
    return Source(
        name=name,
        aliases=names or (name,),
        tokenizer=tokenizer,
        model_type=str(checkpoint.config.get("model_type", "")),
        window_tokens=model_window_tokens(checkpoint, options),
        generation_config=checkpoint.generation_config,
        build=lambda: _build(checkpoint, options),
        draft=_open_draft(config, tokenizer),
    )


def _open_draft(config: ServerConfig, tokenizer: Tokenizer) -> Draft | None:
    """The draft model that the options name.

    Raises:
        StartupError: it cannot be had, or its tokens are not those of the served model.
    """
    from mlxcel.runners.generate.options import RopeOverrides
    from mlxcel.runners.weights import open_checkpoint

    if not uses_draft_model(config.speculative):
        return None
    wanted = config.speculative.draft_model
    path = find_model(dataclasses.replace(config, model=dataclasses.replace(config.model, hf_repo="", model=wanted)))
    checkpoint, name = open_checkpoint(path), _display_name(wanted, path)
    difference = first_difference(tokenizer, load_tokenizer(path))
    if difference is not None:
        raise StartupError(f"--draft-model {wanted}: its vocabulary is not the served model's ({difference})")
    options = dataclasses.replace(runner_options(config, name), context_tokens=0, rope=RopeOverrides())
    return Draft(name, lambda: _build(checkpoint, options))


def find_model(config: ServerConfig) -> Path:
    """The checkpoint that the options name, downloaded if need be.

    Raises:
        StartupError: no model was named, or it cannot be had.
    """
    from mlxcel.runners.hub import locate

    wanted = config.model.hf_repo or config.model.model
    if not wanted:
        raise StartupError("no model was named; start with -m PATH, -m owner/name or -m smollm2-135m")
    return locate(
        wanted,
        offline=config.model.offline,
        revision=config.model.revision,
        token=config.model.hf_token or None,
        store_root=Path(config.model.store_root) if config.model.store_root else None,
    )


def _build(checkpoint: Checkpoint, options: RunnerOptions) -> ModelRunner:
    from mlxcel.runners.generate.build import build_runner

    return build_runner(checkpoint, options)


def model_window_tokens(checkpoint: Checkpoint, options: RunnerOptions) -> int:
    """The model's own window with the operator's position scaling, in tokens."""
    from mlxcel.runners.generate.window import declared_window_tokens

    return declared_window_tokens(options.rope.apply(checkpoint.config) if options.rope.active else checkpoint.config)


def _display_name(wanted: str, path: Path) -> str:
    return path.stem if Path(wanted).exists() and path.is_file() else Path(wanted).name or wanted

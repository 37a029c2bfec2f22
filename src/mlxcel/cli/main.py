"""Entry points: ``mlxcel COMMAND`` and ``mlxcel-server``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence

from mlxcel import __version__
from mlxcel.core.errors import StartupError

Command = Callable[[Sequence[str]], int]


def _lazily(module: str, function: str = "run") -> Command:
    """A command whose module is only imported when it runs, so that ``--help`` stays quick."""

    def run(arguments: Sequence[str]) -> int:
        command: Command = getattr(importlib.import_module(module), function)
        return command(arguments)

    return run


COMMANDS: dict[str, tuple[Command, str]] = {
    "serve": (_lazily("mlxcel.cli.serve"), "serve a model over HTTP (the same as mlxcel-server)"),
    "generate": (_lazily("mlxcel.cli.generate"), "answer a prompt, or talk, in the terminal"),
    "chat": (_lazily("mlxcel.cli.generate", "run_chat"), "talk to a model in the terminal"),
    "embed": (_lazily("mlxcel.cli.embed"), "turn texts into vectors and compare them"),
    "rerank": (_lazily("mlxcel.cli.rerank"), "order documents by their relevance to a query"),
    "list": (_lazily("mlxcel.cli.store", "run_list"), "list the downloaded models"),
    "download": (_lazily("mlxcel.cli.store", "run_download"), "download a model"),
    "rm": (_lazily("mlxcel.cli.store", "run_rm"), "delete a downloaded model"),
    "inspect": (_lazily("mlxcel.cli.inspect"), "show how a model would be served, and the memory it takes"),
    "arch": (_lazily("mlxcel.cli.inspect", "run_arch"), "list the model types that can be served"),
    "launch": (_lazily("mlxcel.cli.launch"), "start a coding agent (claude, codex, opencode) on a running server"),
    "bench": (_lazily("mlxcel.cli.bench.command"), "measure a server"),
    "docs": (_lazily("mlxcel.cli.docs"), "write the generated reference pages"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """``mlxcel``: dispatch to a command."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if words[0] == "--version":
        print(f"mlxcel {__version__}")
        return 0
    command = COMMANDS.get(words[0])
    if command is None:
        return _fail(f"unknown command {words[0]!r}; mlxcel --help lists them")
    return _guarded(command[0], words[1:])


def server_main(arguments: Sequence[str] | None = None) -> int:
    """``mlxcel-server``: the serve command."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--version" in words:
        print(f"mlxcel-server {__version__}")
        return 0
    return _guarded(COMMANDS["serve"][0], words)


def _guarded(command: Command, arguments: Sequence[str]) -> int:
    try:
        return command(arguments)
    except StartupError as error:
        return _fail(error.message)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of a pipe (head, less) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _fail(message: str) -> int:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return 1


def _usage() -> str:
    lines = [f"  {name:<10} {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(["usage: mlxcel COMMAND [options]", "", *lines, "", "mlxcel COMMAND --help shows its options."])


if __name__ == "__main__":
    sys.exit(main())

"""``mlxcel serve``: one process that serves a model over HTTP."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Sequence

from mlxcel.cli.options import build_parser, resolve
from mlxcel.config.server import ServerConfig
from mlxcel.core.errors import StartupError
from mlxcel.observe.logging import configure_logging


def parse(arguments: Sequence[str]) -> ServerConfig:
    """The configuration from arguments and environment.

    Raises:
        StartupError: an unknown flag or a value that does not parse.
    """
    parser = build_parser(ServerConfig, prog="mlxcel-server", description="Serve a model over HTTP.")
    return resolve(ServerConfig, vars(parser.parse_args(list(arguments))), os.environ)


def run(arguments: Sequence[str]) -> int:
    """Serve until interrupted. Returns the exit code."""
    config = parse(arguments)
    secrets = (*config.network.api_keys, config.model.hf_token)
    configure_logging(
        verbosity=9 if config.log.verbose else config.log.verbosity,
        disabled=config.log.disabled,
        file=config.log.file,
        colors=config.log.colors,
        secrets=secrets,
    )
    from mlxcel.app import build_app, open_source
    from mlxcel.http.server import serve

    listener = _bind(config)
    source = open_source(config)
    app = build_app(config, source)
    address = _address(config, listener)

    def announce() -> None:
        print(_greeting(source.name, address, keyed=bool(config.network.api_keys)), file=sys.stderr, flush=True)

    return asyncio.run(serve(app.asgi, listener, app.model.client, timeout_s=config.network.timeout_s, on_ready=announce))


def _bind(config: ServerConfig) -> socket.socket:
    """Take the address first: a port in use should not cost a model load."""
    host, port = config.network.host, config.network.port
    try:
        if host.endswith(".sock"):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            if os.path.exists(host):  # noqa: PTH110
                os.unlink(host)  # noqa: PTH108
            listener.bind(host)
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
    except OSError as error:
        raise StartupError(f"cannot listen on {host} port {port}: {error.strerror}; choose another with --port") from None
    listener.set_inheritable(True)
    return listener


def _address(config: ServerConfig, listener: socket.socket) -> str:
    if config.network.host.endswith(".sock"):
        return f"unix:{config.network.host}"
    host = config.network.host
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{listener.getsockname()[1]}"


def _greeting(model: str, address: str, *, keyed: bool) -> str:
    key = " -H 'Authorization: Bearer YOUR_KEY'" if keyed else ""
    target = f"--unix-socket {address[5:]} http://localhost" if address.startswith("unix:") else address
    body = '{"messages":[{"role":"user","content":"What is the capital of France?"}]}'
    return (
        f"\n{model} is ready on {address}. Try it:\n\n"
        f"  curl {target}/v1/chat/completions -H 'Content-Type: application/json'{key} \\\n    -d '{body}'\n"
    )

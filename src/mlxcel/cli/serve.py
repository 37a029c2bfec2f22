"""``mlxcel serve``: one process that serves a model over HTTP."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path

from mlxcel.cli.completion import bash_completion
from mlxcel.cli.inert import add_inert, check_inert
from mlxcel.cli.inspect import inspect_model, print_report
from mlxcel.cli.options import build_parser, resolve
from mlxcel.cli.store import run_list
from mlxcel.config.keys import api_keys
from mlxcel.config.server import ServerConfig
from mlxcel.core.errors import StartupError
from mlxcel.http.guards import is_loopback
from mlxcel.http.metrics_app import metrics_app
from mlxcel.http.server import Side, Tls, serve
from mlxcel.observe.logging import configure_logging

# Path and body of the first request that the greeting suggests.
_CHAT = ("/v1/chat/completions", '{"messages":[{"role":"user","content":"What is the capital of France?"}]}')
_EMBED = ("/v1/embeddings", '{"input":["What is the capital of France?"]}')
_RERANK = ("/v1/rerank", '{"query":"What is the capital of France?","documents":["Paris","Rome"]}')


def parse(arguments: Sequence[str]) -> ServerConfig:
    """The configuration from arguments and environment.

    Raises:
        StartupError: an unknown flag or a value that does not parse.
    """
    parser = build_parser(ServerConfig, prog="mlxcel-server", description="Serve a model over HTTP.")
    add_inert(parser)
    parsed = vars(parser.parse_args(list(arguments)))
    check_inert(parsed)
    return resolve(ServerConfig, parsed, os.environ)


def run(arguments: Sequence[str]) -> int:
    """Serve until interrupted. Returns the exit code."""
    config = parse(arguments)
    if config.actions.completion_bash:
        from mlxcel.cli.main import COMMANDS  # which imports this module

        print(bash_completion(COMMANDS), end="")
        return 0
    if config.actions.cache_list:
        return run_list(["--models-dir", config.model.store_root] if config.model.store_root else [])
    keys = api_keys(config.network)
    configure_logging(
        verbosity=9 if config.log.verbose else config.log.verbosity,
        disabled=config.log.disabled,
        file=config.log.file,
        colors=config.log.colors,
        secrets=(*keys, config.model.hf_token),
    )
    if config.memory.estimate:
        print_report(inspect_model(config))
        return 0
    from mlxcel.app import build_app, open_models

    listener = _bind(config.network.host, config.network.port, reuse=config.network.reuse_port)
    metrics_listener = _bind_metrics(config)
    models = open_models(config)
    app = build_app(config, models)
    address = _address(config, listener)

    example = _CHAT if models.chat else _EMBED if models.embedder else _RERANK

    def announce() -> None:
        print(_greeting(models.name, address, example, keyed=bool(keys)), file=sys.stderr, flush=True)

    side = None
    if metrics_listener is not None:
        guarded = is_loopback(metrics_listener.getsockname()[0])
        side = Side(metrics_app(app.rooms.metrics, guard_host=guarded), metrics_listener)
    running = serve(
        app.asgi, listener, app, timeout_s=config.network.timeout_s, on_ready=announce, tls=_tls(config), side=side
    )
    return asyncio.run(running)


def _bind_metrics(config: ServerConfig) -> socket.socket | None:
    """The listener of --metrics-port; beside a Unix socket it is on the loopback interface."""
    host, port = config.network.host, config.endpoints.metrics_port
    if not port:
        return None
    return _bind("127.0.0.1" if host.endswith(".sock") else host, port, flag="--metrics-port")


def _bind(host: str, port: int, *, reuse: bool = False, flag: str = "--port") -> socket.socket:
    """Take the address first: a port in use should not cost a model load."""
    try:
        if host.endswith(".sock"):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            if Path(host).is_socket():  # left over from a process that was killed; anything else is not ours to remove
                Path(host).unlink()
            listener.bind(host)
            Path(host).chmod(0o600)
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((host, port))
    except OSError as error:
        raise StartupError(f"cannot listen on {host} port {port}: {error.strerror}; choose another with {flag}") from None
    listener.set_inheritable(True)
    return listener


def _tls(config: ServerConfig) -> Tls | None:
    """
    Raises:
        StartupError: only one of the two files is named, or they do not belong together.
    """
    cert, key = config.network.ssl_cert_file, config.network.ssl_key_file
    if not cert and not key:
        return None
    if not cert or not key:
        raise StartupError("--ssl-cert-file and --ssl-key-file must be given together")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise StartupError(f"--ssl-cert-file: cannot use {cert} with {key}: {error}") from None
    return Tls(cert, key)


def _address(config: ServerConfig, listener: socket.socket) -> str:
    if config.network.host.endswith(".sock"):
        return f"unix:{config.network.host}"
    host = config.network.host
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    scheme = "https" if config.network.ssl_cert_file else "http"
    return f"{scheme}://{shown}:{listener.getsockname()[1]}"


def _greeting(model: str, address: str, example: tuple[str, str], *, keyed: bool) -> str:
    key = " -H 'Authorization: Bearer YOUR_KEY'" if keyed else ""
    target = f"--unix-socket {address[5:]} http://localhost" if address.startswith("unix:") else address
    path, body = example
    return (
        f"\n{model} is ready on {address}. Try it:\n\n"
        f"  curl {target}{path} -H 'Content-Type: application/json'{key} \\\n    -d '{body}'\n"
    )

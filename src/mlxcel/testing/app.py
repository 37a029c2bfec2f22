"""Whole servers for tests: in process or on a real socket, over a scripted model or a real checkpoint.

::

    source = scripted_source("Hello there", folder)
    with LiveServer(build_app(ServerConfig(), source)) as server:
        httpx2.post(server.url + "/v1/chat/completions", json=...)
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar

import httpx2
import uvicorn

from mlxcel.app import App, Source, build_app, open_source
from mlxcel.config.model import ModelConfig
from mlxcel.config.server import ServerConfig
from mlxcel.core.ports import ModelInfo
from mlxcel.http.server import uvicorn_config
from mlxcel.testing.scripted_runner import SCRIPTED_MODEL, ScriptedRunner
from mlxcel.testing.tiny_tokenizer import write_tiny_tokenizer
from mlxcel.text.tokenizer import Tokenizer, load_tokenizer

Say = Callable[[str], str | Sequence[int | Exception]]


class Closable(Protocol):
    """What holds connections."""

    def close(self) -> None:
        """Give them back."""


Client = TypeVar("Client", bound=Closable)


def scripted_source(
    say: str | Say,
    folder: Path,
    *,
    chat_template: str | None = None,
    info: ModelInfo = SCRIPTED_MODEL,
    step_s: float = 0.0,
    prefill_token_s: float = 0.0,
) -> Source:
    """A model that says what it is told, with a real tokenizer and chat template.

    Args:
        say: the answer to every prompt, or a function of the prompt's text. Text is encoded, a sequence is taken as token
            ids (an exception among them fails the row at that token).
        folder: where the tokenizer is written.
        step_s: seconds of every step; see :class:`~mlxcel.testing.scripted_runner.ScriptedRunner`.
    """
    write_tiny_tokenizer(folder, chat_template=chat_template)
    tokenizer = load_tokenizer(folder)
    vocab_info = dataclasses.replace(info, vocab_size=tokenizer.vocab_size)

    def script(prompt_ids: tuple[int, ...]) -> Sequence[int | Exception]:
        answer = say if isinstance(say, str) else say(tokenizer.decode(prompt_ids))
        return tokenizer.encode(answer) if isinstance(answer, str) else answer

    def build() -> ScriptedRunner:
        return ScriptedRunner(
            script, info=vocab_info, end_id=_end_id(tokenizer), step_s=step_s, prefill_token_s=prefill_token_s
        )

    return Source("scripted", ("scripted",), tokenizer, "scripted", info.context_tokens, {}, build)


def _end_id(tokenizer: Tokenizer) -> int:
    return min(tokenizer.eos_ids)


def checkpoint_source(path: Path, config: ServerConfig | None = None) -> Source:
    """A real checkpoint through the real loader."""
    config = config or ServerConfig()
    model = dataclasses.replace(config.model, model=str(path))
    return open_source(dataclasses.replace(config, model=model))


def with_model(config: ServerConfig, **changes: object) -> ServerConfig:
    """The configuration with other model options."""
    return dataclasses.replace(config, model=dataclasses.replace(ModelConfig(), **changes))  # type: ignore[arg-type]


@asynccontextmanager
async def in_process(app: App) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that talks to the application without a socket; the model is ready.

    The transport hands over a response when it is complete: use :class:`LiveServer` to see frames as they come.
    """
    async with app.asgi.router.lifespan_context(app.asgi):
        await app.wait_ready()
        transport = httpx2.ASGITransport(app=app.asgi)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080", timeout=60) as client:
            yield client


class LiveServer:
    """Serves an application on an ephemeral loopback port from a thread of its own."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.bind(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(uvicorn_config(app.asgi, timeout_s=75, shutdown_grace_s=1))
        self._thread = threading.Thread(target=self._run, name="live-server", daemon=True)
        self._clients = ExitStack()

    @classmethod
    def of(cls, source: Source, config: ServerConfig | None = None) -> LiveServer:
        """A server of a source."""
        return cls(build_app(config or ServerConfig(), source))

    @property
    def app(self) -> App:
        return self._app

    def hold(self, client: Client) -> Client:
        """A client that is closed with the server, so that no connection is left to the garbage collector."""
        return self._clients.enter_context(closing(client))

    def __enter__(self) -> Self:
        self._thread.start()
        with httpx2.Client(base_url=self.url, timeout=30) as client:
            for _ in range(3000):
                if self._server.started and client.get("/health").status_code == 200:
                    return self
                if not self._thread.is_alive():
                    break
                self._thread.join(0.01)
        raise RuntimeError("the server did not become ready")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._clients.close()
        self._server.should_exit = True
        self._thread.join(20)
        self._listener.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))

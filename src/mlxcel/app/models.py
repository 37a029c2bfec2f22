"""Which models a server has: one that generates, one that embeds, one that ranks."""

from __future__ import annotations

import dataclasses
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mlxcel.app.source import Source, open_source
from mlxcel.config.embeddings import DEFAULT_TIMEOUT_S, EmbeddingConfig
from mlxcel.config.server import ServerConfig
from mlxcel.core.errors import StartupError
from mlxcel.core.vectors import Pooling, Vector
from mlxcel.engine.batches import BatchClient, BatchLimits
from mlxcel.services.embeddings import ServedEmbedder
from mlxcel.services.rerank import ServedReranker
from mlxcel.text.tokenizer import Tokenizer, load_tokenizer
from mlxcel.text.vector_tokens import RowTokenizer

if TYPE_CHECKING:
    from mlxcel.runners.embed.build import EmbedderChoices
    from mlxcel.runners.embed.detect import Embedder, Reranker

log = logging.getLogger(__name__)

_POOLING_NAMES: dict[str, Pooling] = {
    "mean": "mean", "cls": "cls", "max": "max", "last": "lasttoken", "lasttoken": "lasttoken"
}  # fmt: skip
_EMBEDDING_TOKENS = 128  # that one text stands for in --embedding-batch-size
_RERANK_TOKENS = 256  # that one pair stands for in --rerank-batch-size
_RERANK_BATCH = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Models:
    """What a server serves; each may be absent, not all of them.

    Attributes:
        restricted_by: the flag that keeps a server to one kind.
        side_tokenizer: of the embedder or reranker, when nothing generates.
    """

    chat: Source | None = None
    embedder: ServedEmbedder | None = None
    reranker: ServedReranker | None = None
    restricted_by: Literal["--embeddings", "--reranking"] | None = None
    side_tokenizer: Tokenizer | None = None

    @property
    def name(self) -> str:
        """Shown to clients as the server's model."""
        first = self.chat or self.embedder or self.reranker
        if first is None:
            raise StartupError("no model was named; start with -m PATH, -m owner/name or -m smollm2-135m")
        return first.name


@dataclasses.dataclass(frozen=True, slots=True)
class _Paths:
    """Checkpoints by role. ``main`` is the one of ``-m``."""

    main: Path | None
    embedder: tuple[Path, Embedder, str] | None
    reranker: tuple[Path, Reranker, str] | None


def open_models(config: ServerConfig) -> Models:
    """Find the checkpoints of a server and read everything but their weights.

    Raises:
        StartupError: one line that says which option or checkpoint is wrong.
    """
    options = config.embeddings
    restricted_by = _restriction(options)
    paths = _paths(config)
    beside = paths.main is not None and restricted_by is None
    embedder = _embedder(config, beside, *paths.embedder) if paths.embedder and restricted_by != "--reranking" else None
    reranker = _reranker(config, beside, *paths.reranker) if paths.reranker and restricted_by != "--embeddings" else None
    if restricted_by == "--embeddings" and embedder is None:
        raise StartupError("--embeddings needs an embedding model: name one with -m or --embedding-model")
    if restricted_by == "--reranking" and reranker is None:
        raise StartupError("--reranking needs a reranker: name one with -m or --reranker-model")
    if restricted_by is None and (paths.main is not None or not (embedder or reranker)):
        return Models(open_source(config), embedder, reranker)
    side = paths.embedder if embedder is not None else paths.reranker
    return Models(None, embedder, reranker, restricted_by, None if side is None else _side_tokenizer(side[0]))


def _side_tokenizer(path: Path) -> Tokenizer | None:
    """For the tokenizer routes; None where it is of a kind that they do not know."""
    try:
        return load_tokenizer(path)
    except StartupError as error:
        log.warning("POST /tokenize is not served: %s", error.message)
        return None


def _restriction(options: EmbeddingConfig) -> Literal["--embeddings", "--reranking"] | None:
    if options.pooling == "none":
        raise StartupError("--pooling none: vectors of single tokens are not served; choose mean, cls or last")
    reranking = options.reranking_only or options.pooling == "rank"
    if reranking and options.embeddings_only:
        raise StartupError("--embeddings and --reranking exclude each other")
    return "--reranking" if reranking else "--embeddings" if options.embeddings_only else None


def _paths(config: ServerConfig) -> _Paths:
    from mlxcel.app.source import find_model
    from mlxcel.runners.embed.detect import Embedder, Reranker, detect, embedder_of, reranker_of

    options, model = config.embeddings, config.model
    wanted = model.hf_repo or model.model
    if not wanted and not options.embedding_model and not options.reranker_model:
        find_model(config)  # says that no model was named
    main = find_model(config) if wanted else None
    found = detect(main) if main is not None else None
    side_embedder = _find(config, options.embedding_model)
    side_reranker = _find(config, options.reranker_model)
    embedder = None if side_embedder is None else (side_embedder, embedder_of(side_embedder), options.embedding_model)
    reranker = None if side_reranker is None else (side_reranker, reranker_of(side_reranker), options.reranker_model)
    if main is not None and side_reranker is not None and main.resolve() == side_reranker.resolve():
        return _Paths(None, embedder, reranker)
    if isinstance(found, Embedder) and main is not None:
        if embedder is not None:
            raise StartupError("two embedding models were named: one with -m and one with --embedding-model")
        return _Paths(None, (main, found, _own_name(config, wanted)), reranker)
    if isinstance(found, Reranker) and main is not None:
        if reranker is not None:
            raise StartupError("two rerankers were named: one with -m and one with --reranker-model")
        return _Paths(None, embedder, (main, found, _own_name(config, wanted)))
    return _Paths(main, embedder, reranker)


def _find(config: ServerConfig, wanted: str) -> Path | None:
    from mlxcel.app.source import find_model

    if not wanted:
        return None
    return find_model(dataclasses.replace(config, model=dataclasses.replace(config.model, hf_repo="", model=wanted)))


def _own_name(config: ServerConfig, wanted: str) -> str:
    names = sorted(name.strip() for name in config.model.alias.split(",") if name.strip())
    return names[0] if names else wanted


def _embedder(config: ServerConfig, beside: bool, path: Path, found: Embedder, wanted: str) -> ServedEmbedder:
    from mlxcel.runners.embed.build import open_embedder
    from mlxcel.runners.embed.prompts import format_text

    opened = open_embedder(path, found, _choices(config, beside_decoder=beside))
    limits = _limits(config.embeddings, config.embeddings.batch_size * _EMBEDDING_TOKENS)
    return ServedEmbedder(
        name=_display_name(wanted, path),
        info=opened.info,
        tokenizer=RowTokenizer(opened.tokenizer, opened.info.max_tokens, lower_case=opened.lower_case),
        format=partial(format_text, found.family),
        client=BatchClient[Vector](opened.load, limits, name="embedder"),
    )


def _reranker(config: ServerConfig, beside: bool, path: Path, found: Reranker, wanted: str) -> ServedReranker:
    from mlxcel.runners.rerank.build import open_reranker

    opened = open_reranker(path, found, _choices(config, beside_decoder=beside))
    limits = _limits(config.embeddings, (config.embeddings.rerank_batch_size or _RERANK_BATCH) * _RERANK_TOKENS)
    client = BatchClient[float](opened.load, limits, name="reranker")
    return ServedReranker(_display_name(wanted, path), opened.info, opened.encoder, client)


def _choices(config: ServerConfig, *, beside_decoder: bool) -> EmbedderChoices:
    from mlxcel.app.settings import runner_options
    from mlxcel.runners.embed.build import EmbedderChoices
    from mlxcel.runners.generate.build import pick_device

    options = config.embeddings
    return EmbedderChoices(
        pooling=_POOLING_NAMES.get(options.pooling),
        norm=options.embd_normalize,
        max_tokens=options.max_length,
        device=pick_device(runner_options(config, "side")),
        threads=max(config.model.threads, 0),
        beside_decoder=beside_decoder,
    )


def _limits(options: EmbeddingConfig, batch_tokens: int) -> BatchLimits:
    return BatchLimits(batch_tokens, max(options.queue_depth, 1), options.timeout_s or DEFAULT_TIMEOUT_S)


def _display_name(wanted: str, path: Path) -> str:
    return Path(wanted).name if Path(wanted).exists() else wanted or path.name

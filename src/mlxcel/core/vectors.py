"""Embedding and reranking in neutral words: what a client asks for, the rows that a model computes, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mlxcel.core.chat import MediaPart, TextPart

Pooling = Literal["cls", "mean", "max", "lasttoken"]
RerankKind = Literal["sequence_classifier", "generative_text"]


@dataclass(frozen=True, slots=True)
class TokensPart:
    """Token ids that are used verbatim: no special tokens are added."""

    token_ids: tuple[int, ...]


EmbedInput = TextPart | TokensPart | MediaPart


@dataclass(frozen=True, slots=True)
class EmbedJob:
    """Turn inputs into vectors, one each.

    Attributes:
        inputs: in request order; never empty.
        instruction: task text for families whose prompt has a place for one.
        dimensions: keep the first components only; None keeps all.
        norm: scaling of the result: -1 none, 0 largest magnitude to int16's, 1 taxicab, 2 euclidean, p > 2 that norm; None:
            the served model's own.
    """

    inputs: tuple[EmbedInput, ...]
    instruction: str | None = None
    dimensions: int | None = None
    norm: int | None = None


@dataclass(frozen=True, slots=True)
class Vector:
    """Little-endian float32 components in row-major order; ``shape`` is (D,), or (tokens, D) of a late-interaction model."""

    data: bytes
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The vectors in request order. ``truncated`` holds the indices of inputs that were longer than the model's limit."""

    vectors: tuple[Vector, ...]
    prompt_tokens: int
    truncated: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RankItem:
    """A query or a document: text, an image, or both."""

    text: str | None = None
    image: MediaPart | None = None


@dataclass(frozen=True, slots=True)
class RerankJob:
    """Score documents against a query.

    Attributes:
        top_n: results wanted; None for all.
        instruction: what "relevant" means, for judges that read one.
        raw: scores before the sigmoid.
    """

    query: RankItem
    documents: tuple[RankItem, ...]
    top_n: int | None = None
    instruction: str | None = None
    raw: bool = False


@dataclass(frozen=True, slots=True)
class Ranked:
    """One document's place in the request and its score."""

    index: int
    score: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """Best first; equal scores in request order. ``truncated`` as in :class:`Embeddings`."""

    results: tuple[Ranked, ...]
    prompt_tokens: int
    truncated: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One sequence for one forward pass. ``type_ids`` are a pair's segment numbers; empty means all zero."""

    token_ids: tuple[int, ...]
    type_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EmbedderInfo:
    """Facts of an embedding model.

    Attributes:
        family: the model type.
        dimensions: components of a vector.
        max_tokens: longest input; longer texts are cut.
        vocab_size: bound of token ids.
        pooling: how token states become one vector; None when each token keeps its own.
        norm: scaling when a request names none, in the numbers of :attr:`EmbedJob.norm`.
    """

    family: str
    dimensions: int
    max_tokens: int
    vocab_size: int
    pooling: Pooling | None
    norm: int


@dataclass(frozen=True, slots=True)
class RerankerInfo:
    """Facts of a reranker. ``max_tokens`` bounds a query and a document together."""

    kind: RerankKind
    family: str
    max_tokens: int

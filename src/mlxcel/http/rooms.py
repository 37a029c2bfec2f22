"""The object graph that routes may use; built by ``mlxcel.app`` and never changed by a route."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from mlxcel.core.errors import NoModelForRoute
from mlxcel.core.events import Completed
from mlxcel.observe.metrics import Metrics
from mlxcel.services.chat import ChatService
from mlxcel.services.compaction import CompactionService
from mlxcel.services.completion import CompletionService
from mlxcel.services.embeddings import EmbeddingService
from mlxcel.services.infill import InfillService
from mlxcel.services.messages import MessagesService
from mlxcel.services.rerank import RerankService
from mlxcel.services.responses import ResponsesService
from mlxcel.services.slots import SlotService
from mlxcel.services.status import StatusService
from mlxcel.services.tokens import TokenService
from mlxcel.stores.streams import StreamStore
from mlxcel.wire.context import ServerFacts

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Optional routes that the operator switched on or off."""

    metrics: bool = False
    props_post: bool = False
    slots: bool = True


@dataclass(frozen=True, slots=True)
class Generation:
    """What a generating model serves.

    Attributes:
        chat: conversations.
        compaction: shortens histories.
        messages: conversations of the Anthropic surface.
        completion: raw prompts.
        infill: prompts of POST /infill.
        slots: tokens of slots as files.
    """

    chat: ChatService
    compaction: CompactionService
    messages: MessagesService
    completion: CompletionService
    infill: InfillService
    slots: SlotService


@dataclass(frozen=True, slots=True)
class Absent:
    """Why a kind of model is not there: what its routes answer, naming the flag that would help."""

    generation: str = "no model that generates is loaded; start the server with -m"
    embeddings: str = "This server does not support embeddings. Start it with `--embeddings`"
    reranking: str = "This server does not support reranking. Start it with `--reranking`"


@dataclass(slots=True)
class Rooms:
    """Services and limits of one server. A service whose model is not loaded raises NoModelForRoute when it is asked for.

    Attributes:
        facts: constant data for the wire modules.
        generation: services of the generating model.
        embedder: vectors.
        reranker: relevance scores.
        absent: what the routes of models that are not loaded answer.
        responses: stored responses and conversations of the Responses surface.
        tokenizer: of the generating model, else of another.
        status: health, slots and counters.
        metrics: what /metrics shows.
        streams: event streams that outlive their connection.
        endpoints: which optional routes are on.
        shares_cache: holders of different keys share cached prompts.
        max_body_bytes: largest request body.
        read_timeout_s: a body that takes longer to arrive is given up.
        ping_interval_s: silence on a stream before a keep-alive; None for none.
    """

    facts: ServerFacts
    generation: Generation | None
    responses: ResponsesService
    tokenizer: TokenService | None
    status: StatusService
    metrics: Metrics
    embedder: EmbeddingService | None = None
    reranker: RerankService | None = None
    absent: Absent = field(default_factory=Absent)
    streams: StreamStore = field(default_factory=StreamStore)
    endpoints: Endpoints = field(default_factory=Endpoints)
    shares_cache: bool = False
    max_body_bytes: int = 64 * 2**20
    read_timeout_s: float = 3600.0
    ping_interval_s: float | None = 5.0
    _logged: set[str] = field(default_factory=set)

    @property
    def chat(self) -> ChatService:
        return self._generation().chat

    @property
    def compaction(self) -> CompactionService:
        return self._generation().compaction

    @property
    def messages(self) -> MessagesService:
        return self._generation().messages

    @property
    def completion(self) -> CompletionService:
        return self._generation().completion

    @property
    def infill(self) -> InfillService:
        return self._generation().infill

    @property
    def slots(self) -> SlotService:
        return self._generation().slots

    @property
    def tokens(self) -> TokenService:
        if self.tokenizer is None:
            raise NoModelForRoute("the loaded model's tokenizer cannot be used by itself")
        return self.tokenizer

    @property
    def embeddings(self) -> EmbeddingService:
        if self.embedder is None:
            raise NoModelForRoute(self.absent.embeddings)
        return self.embedder

    @property
    def rerank(self) -> RerankService:
        if self.reranker is None:
            raise NoModelForRoute(self.absent.reranking)
        return self.reranker

    def _generation(self) -> Generation:
        if self.generation is None:
            raise NoModelForRoute(self.absent.generation)
        return self.generation

    def count(self, answers: Iterable[Completed]) -> None:
        """Count finished answers of one request in the totals of /metrics."""
        usages = [(answer.usage, answer.timings) for answer in answers]
        self.metrics.record(
            prompt_tokens=usages[0][0].prompt_tokens,
            completion_tokens=sum(usage.completion_tokens for usage, _ in usages),
            generation_s=max(timings.prefill_s + timings.decode_s for _, timings in usages),
        )

    def log_once(self, key: str, message: str) -> None:
        """Log a warning the first time ``key`` comes up."""
        if key not in self._logged:
            self._logged.add(key)
            log.warning(message)

"""Objects of a server, put together."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from mlxcel.app.constraints import check_constraint, server_constraint
from mlxcel.app.models import Models
from mlxcel.app.settings import engine_config, generation_defaults, slot_context_tokens, slot_count, template_text
from mlxcel.app.source import Source
from mlxcel.config.adapters import named_adapters
from mlxcel.config.keys import api_keys
from mlxcel.config.option import parse_list
from mlxcel.config.server import ServerConfig
from mlxcel.config.stores import StoresConfig
from mlxcel.core.errors import StartupError
from mlxcel.engine.batches import BatchClient
from mlxcel.engine.client import EngineClient
from mlxcel.engine.loop_detection import parse_loop_policy, resolve_loop_policy
from mlxcel.http.auth import KeyRing
from mlxcel.http.guards import cors_middleware, is_loopback
from mlxcel.http.rooms import Absent, Endpoints, Generation, Rooms
from mlxcel.http.routes import all_routes
from mlxcel.http.server import Lifespan, build_asgi
from mlxcel.observe.metrics import Metrics
from mlxcel.services.adapters import LiveAdapters
from mlxcel.services.chat import ChatService
from mlxcel.services.compaction import CompactionService
from mlxcel.services.completion import CompletionService
from mlxcel.services.embeddings import EmbeddingService
from mlxcel.services.generation import GenerationService
from mlxcel.services.infill import InfillService
from mlxcel.services.messages import MessagesService
from mlxcel.services.model import ChatPolicy, ServedModel
from mlxcel.services.rerank import RerankService
from mlxcel.services.responses import ResponsesService
from mlxcel.services.slots import SlotService
from mlxcel.services.status import SideModel, StatusService
from mlxcel.services.tokens import TokenService
from mlxcel.stores.lru import StoreLimits
from mlxcel.stores.reasoning_echo import ReasoningEchoStore
from mlxcel.stores.responses import ConversationStore, ResponseStore
from mlxcel.stores.slots import SlotFiles
from mlxcel.text.chat_template import ChatTemplate
from mlxcel.text.constrain import ConstraintFactory
from mlxcel.text.reasoning import detect_reasoning
from mlxcel.text.tool_formats import FORMATS, detect_format
from mlxcel.wire.context import ServerFacts

_POOL_THREADS = 2


@dataclasses.dataclass(slots=True)
class App:
    """A server ready to be run: the ASGI application and what has to be started and closed around it."""

    asgi: Starlette
    rooms: Rooms
    sides: tuple[SideModel, ...] = ()

    @property
    def model(self) -> ServedModel:
        """The generating model. Raises NoModelForRoute when there is none."""
        return self.rooms.status.model

    async def wait_ready(self) -> None:
        """Wait until every model is loaded.

        Raises:
            StartupError: one could not be loaded.
        """
        if self.rooms.generation is not None:
            await self.model.client.wait_ready()
        for side in self.sides:
            await side.client.wait_ready()


def build_app(config: ServerConfig, models: Models | Source) -> App:
    """All objects of a server. Nothing is loaded before the application starts.

    Args:
        models: what to serve; a source alone is a server for one generating model.

    Raises:
        StartupError: options that contradict each other or the model.
    """
    if config.network.api_prefix and not config.network.api_prefix.startswith("/"):
        raise StartupError("--api-prefix: must start with /")
    if isinstance(models, Source):
        models = Models(models)
    source = models.chat
    pool = ThreadPoolExecutor(_POOL_THREADS, thread_name_prefix="mlxcel-pool")
    model = None if source is None else _served_model(config, source)
    tokenizer = models.side_tokenizer if source is None else source.tokenizer
    sides = _side_models(models)
    absent = _absent(models)
    status = StatusService(model, sides, restricted_by=models.restricted_by, absent=absent.generation)
    metrics = Metrics(status.gauges)
    tokens = None if tokenizer is None else TokenService(tokenizer)
    generation = None if model is None or tokens is None else _generation(config, model, pool, metrics, tokens)
    interval_s = config.network.sse_ping_interval_s
    rooms = Rooms(
        facts=_facts(config, models),
        generation=generation,
        embedder=None if models.embedder is None else EmbeddingService(models.embedder, pool),
        reranker=None if models.reranker is None else RerankService(models.reranker, pool),
        absent=absent,
        responses=responses_service(config.stores),
        tokenizer=tokens,
        status=status,
        metrics=metrics,
        endpoints=Endpoints(
            metrics=config.endpoints.metrics, props_post=config.endpoints.props, slots=config.endpoints.slots
        ),
        shares_cache=config.prompt_cache.share_across_keys,
        max_body_bytes=config.network.max_body_bytes,
        read_timeout_s=config.network.timeout_s,
        ping_interval_s=interval_s if interval_s > 0 else None,
    )

    asgi = build_asgi(
        rooms,
        all_routes(),
        keys=KeyRing(api_keys(config.network)),
        cors=cors_middleware(
            origins=config.network.cors_origins,
            methods=parse_list(config.network.cors_methods),
            headers=parse_list(config.network.cors_headers),
            credentials=config.network.cors_credentials,
        ),
        guard_host=is_loopback(config.network.host),
        prefix=config.network.api_prefix.rstrip("/"),
        lifespan=_lifespan(rooms, model, sides, pool),
    )
    return App(asgi, rooms, sides)


def _lifespan(rooms: Rooms, model: ServedModel | None, sides: Sequence[SideModel], pool: ThreadPoolExecutor) -> Lifespan:
    """Starts the models' threads with the application and ends them with it."""

    @contextlib.asynccontextmanager
    async def lifespan(asgi: Starlette) -> AsyncIterator[None]:
        clients: list[EngineClient | BatchClient[Any]] = [side.client for side in sides]
        if model is not None:
            clients.insert(0, model.client)
        for client in clients:
            client.start()
        try:
            yield
        finally:
            rooms.streams.close()
            for client in clients:
                await client.close()
            pool.shutdown(wait=False, cancel_futures=True)
            if model is not None:
                model.constraints.close()

    return lifespan


def _facts(config: ServerConfig, models: Models) -> ServerFacts:
    recommended = {} if models.chat is None else models.chat.generation_config
    alias = config.template.reasoning_alias_field
    return ServerFacts(
        model_name=models.name,
        defaults=generation_defaults(config, recommended),
        compat="lenient" if config.network.compat == "lenient" else "strict",
        reasoning_alias=None if alias == "none" else alias,
    )


def _generation(
    config: ServerConfig, model: ServedModel, pool: ThreadPoolExecutor, metrics: Metrics, tokens: TokenService
) -> Generation:
    generation = GenerationService(model, pool, metrics.observe_answer)
    chat = ChatService(generation)
    return Generation(
        chat=chat,
        compaction=CompactionService(chat, tokens, model.context_tokens),
        messages=MessagesService(chat, reasoning_echo(config)),
        completion=CompletionService(generation),
        infill=InfillService(model.tokenizer, suffix_first=config.template.spm_infill),
        slots=SlotService(model, SlotFiles(Path(folder)) if (folder := config.endpoints.slot_save_path) else None),
    )


def _side_models(models: Models) -> tuple[SideModel, ...]:
    sides = []
    if (embedder := models.embedder) is not None:
        facts = {"pooling": embedder.info.pooling, "embd_normalize": embedder.info.norm}
        sides.append(SideModel(embedder.name, "embedding", embedder.client, facts))
    if (reranker := models.reranker) is not None:
        sides.append(SideModel(reranker.name, "rerank", reranker.client, {"kind": reranker.info.kind}))
    return tuple(sides)


def _absent(models: Models) -> Absent:
    """What the routes of models that are not loaded say; on a server without generation, what it serves instead."""
    served = " and ".join(side.capability for side in _side_models(models))
    why = f"it was started with {models.restricted_by}" if models.restricted_by else "its model does not generate"
    return Absent(generation=f"This server does not generate text: {why}, and serves {served} only")


def _served_model(config: ServerConfig, source: Source) -> ServedModel:
    context_tokens = slot_context_tokens(config, source.window_tokens)
    engine = EngineClient(
        source.build,
        engine_config(config, slot_count(config), context_tokens),
        load_draft=source.draft.build if source.draft is not None else None,
    )
    tokenizer, options = source.tokenizer, config.template
    template = template_text(config) or tokenizer.chat_template or ""
    chat_template = ChatTemplate.from_tokenizer(tokenizer, template or None)
    constraints, constraint = ConstraintFactory(tokenizer), server_constraint(config.constraints)
    check_constraint(constraint, constraints)
    if options.tool_call_parser and options.tool_call_parser not in FORMATS:
        raise StartupError(f"--tool-call-parser: must be one of {', '.join(sorted(FORMATS))}")
    chat_format = (
        FORMATS[options.tool_call_parser]
        if options.tool_call_parser
        else detect_format(chat_template.tool_source, tokenizer.token_id, source.model_type)
    )
    return ServedModel(
        name=source.name,
        context_tokens=context_tokens,
        client=engine,
        tokenizer=tokenizer,
        template=chat_template,
        constraints=constraints,
        tool_format=chat_format,
        reasoning=detect_reasoning(template, tokenizer.token_id),
        policy=ChatPolicy(
            template_kwargs=options.template_kwargs,
            skip_parsing=options.skip_chat_parsing,
            continue_final=options.prefill_assistant,
            thinking=options.reasoning,  # type: ignore[arg-type]
            reasoning_format=options.reasoning_format,  # type: ignore[arg-type]
            reasoning_effort=options.reasoning_effort,
            reasoning_budget_tokens=options.reasoning_budget_tokens,
            reasoning_budget_message=options.reasoning_budget_message,
            default_loop=resolve_loop_policy(None, parse_loop_policy(config.sampling.loop_detection), source.model_type),
            default_constraint=constraint,
            context_shift=config.scheduling.context_shift,
        ),
        aliases=source.aliases,
        meta=source.meta,
        adapters=LiveAdapters(named_adapters(config.adapters)),
        drafter=source.draft.name if source.draft is not None else None,
    )


def responses_service(stores: StoresConfig) -> ResponsesService:
    """Stored responses and conversations under their caps."""
    responses = StoreLimits(stores.responses_max_entries, stores.responses_max_bytes, stores.responses_ttl_s)
    conversations = StoreLimits(stores.conversations_max_entries, stores.conversations_max_bytes, stores.conversations_ttl_s)
    return ResponsesService(ResponseStore(responses), ConversationStore(conversations))


def reasoning_echo(config: ServerConfig) -> ReasoningEchoStore:
    """The store of thinking text; it only serves the prompt cache, so it is off without one."""
    return ReasoningEchoStore(max_bytes=config.stores.reasoning_echo_max_bytes if config.prompt_cache.enabled else 0)

"""The composition root: the one module that builds objects across rooms."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette

from mlxcel.config.keys import api_keys
from mlxcel.config.option import parse_list
from mlxcel.config.server import ServerConfig
from mlxcel.config.stores import StoresConfig
from mlxcel.core.errors import StartupError
from mlxcel.core.jobs import GenerationOptions
from mlxcel.core.ports import ModelRunner
from mlxcel.core.sampling import SamplingParams
from mlxcel.engine.client import EngineClient
from mlxcel.engine.config import EngineConfig
from mlxcel.http.auth import KeyRing
from mlxcel.http.guards import cors_middleware, is_loopback
from mlxcel.http.rooms import Endpoints, Rooms
from mlxcel.http.routes import all_routes
from mlxcel.http.server import build_asgi
from mlxcel.observe.metrics import Metrics
from mlxcel.prefix_cache.settings import CacheSettings
from mlxcel.services.chat import ChatService
from mlxcel.services.compaction import CompactionService
from mlxcel.services.completion import CompletionService
from mlxcel.services.generation import GenerationService
from mlxcel.services.infill import InfillService
from mlxcel.services.messages import MessagesService
from mlxcel.services.model import ChatPolicy, ServedModel
from mlxcel.services.responses import ResponsesService
from mlxcel.services.status import StatusService
from mlxcel.services.tokens import TokenService
from mlxcel.stores.lru import StoreLimits
from mlxcel.stores.reasoning_echo import ReasoningEchoStore
from mlxcel.stores.responses import ConversationStore, ResponseStore
from mlxcel.text.chat_template import ChatTemplate
from mlxcel.text.constrain import ConstraintFactory
from mlxcel.text.reasoning import detect_reasoning
from mlxcel.text.tokenizer import Tokenizer, load_tokenizer
from mlxcel.text.tool_formats import FORMATS, detect_format
from mlxcel.wire.context import ServerFacts

if TYPE_CHECKING:
    from mlxcel.runners.generate.options import RunnerOptions
    from mlxcel.runners.weights import Checkpoint

log = logging.getLogger(__name__)

AUTO_SLOTS = 4
MIN_SLOT_CONTEXT_TOKENS = 512
_POOL_THREADS = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Where a model comes from: its tokenizer, its configuration and a way to build its runner on the owner thread."""

    name: str
    aliases: tuple[str, ...]
    tokenizer: Tokenizer
    model_type: str
    window_tokens: int
    generation_config: dict[str, Any]
    build: Callable[[], ModelRunner]
    meta: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class App:
    """A server ready to be run: the ASGI application and what has to be started and closed around it."""

    asgi: Starlette
    rooms: Rooms
    model: ServedModel


def build_app(config: ServerConfig, source: Source) -> App:
    """All objects of a server for one model. Nothing is loaded before the application starts.

    Raises:
        StartupError: options that contradict each other or the model.
    """
    if config.network.api_prefix and not config.network.api_prefix.startswith("/"):
        raise StartupError("--api-prefix: must start with /")
    slots = slot_count(config)
    context_tokens = slot_context_tokens(config, source.window_tokens)
    engine = EngineClient(source.build, engine_config(config, slots, context_tokens))
    model = _served_model(config, source, engine, context_tokens)
    facts = ServerFacts(
        model_name=source.name,
        defaults=generation_defaults(config, source.generation_config),
        compat="lenient" if config.network.compat == "lenient" else "strict",
        reasoning_alias=None if config.template.reasoning_alias_field == "none" else config.template.reasoning_alias_field,
    )
    pool = ThreadPoolExecutor(_POOL_THREADS, thread_name_prefix="mlxcel-pool")
    status = StatusService(model)
    metrics = Metrics(status.gauges)
    generation = GenerationService(model, pool, metrics.observe_answer)
    chat, tokens = ChatService(generation), TokenService(source.tokenizer)
    interval_s = config.network.sse_ping_interval_s
    rooms = Rooms(
        facts=facts,
        chat=chat,
        responses=responses_service(config.stores),
        compaction=CompactionService(chat, tokens, context_tokens),
        messages=MessagesService(chat, reasoning_echo(config)),
        completion=CompletionService(generation),
        infill=InfillService(source.tokenizer, suffix_first=config.template.spm_infill),
        tokens=tokens,
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

    @contextlib.asynccontextmanager
    async def lifespan(asgi: Starlette) -> AsyncIterator[None]:
        engine.start()
        try:
            yield
        finally:
            rooms.streams.close()
            await engine.close()
            pool.shutdown(wait=False, cancel_futures=True)

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
        lifespan=lifespan,
    )
    return App(asgi, rooms, model)


def open_source(config: ServerConfig) -> Source:
    """Find the checkpoint and read everything but its weights.

    Raises:
        StartupError: one line that says what is wrong with the model argument or the checkpoint.
    """
    from mlxcel.runners.weights import open_checkpoint

    path = find_model(config)
    wanted = config.model.hf_repo or config.model.model
    checkpoint = open_checkpoint(path)
    names = tuple(sorted(name.strip() for name in config.model.alias.split(",") if name.strip()))
    name = names[0] if names else _display_name(wanted, path)
    options = runner_options(config, name)
    return Source(
        name=name,
        aliases=names or (name,),
        tokenizer=load_tokenizer(path),
        model_type=str(checkpoint.config.get("model_type", "")),
        window_tokens=_window_tokens(checkpoint, options),
        generation_config=checkpoint.generation_config,
        build=lambda: _build(checkpoint, options),
    )


def find_model(config: ServerConfig) -> Path:
    """The checkpoint that the options name, downloaded if need be.

    Raises:
        StartupError: no model was named, or it cannot be had.
    """
    from mlxcel.runners.hub import locate

    wanted = config.model.hf_repo or config.model.model
    if not wanted:
        raise StartupError("no model was named; start with -m PATH, -m owner/name or -m smollm2-135m")
    return locate(
        wanted,
        offline=config.model.offline,
        revision=config.model.revision,
        token=config.model.hf_token or None,
        store_root=Path(config.model.store_root) if config.model.store_root else None,
    )


def _build(checkpoint: Checkpoint, options: RunnerOptions) -> ModelRunner:
    from mlxcel.runners.generate.build import build_runner

    return build_runner(checkpoint, options)


def _window_tokens(checkpoint: Checkpoint, options: RunnerOptions) -> int:
    config = options.rope.apply(checkpoint.config) if options.rope.active else checkpoint.config
    text_config = config.get("text_config") or config
    return int(text_config.get("max_position_embeddings") or text_config.get("n_positions") or 4096)


def _display_name(wanted: str, path: Path) -> str:
    return path.stem if Path(wanted).exists() and path.is_file() else Path(wanted).name or wanted


def slot_count(config: ServerConfig) -> int:
    """Requests that run at once."""
    scheduling = config.scheduling
    if scheduling.no_batch:
        return 1
    return scheduling.max_batch_size or (scheduling.parallel if scheduling.parallel > 0 else AUTO_SLOTS)


def slot_context_tokens(config: ServerConfig, window_tokens: int) -> int:
    """The effective window of one slot: ``--ctx-size`` divided by explicit slots, at most the model's own window.

    Raises:
        StartupError: less than 512 tokens a slot.
    """
    scheduling = config.scheduling
    total = scheduling.ctx_size
    if not total:
        return window_tokens
    unified = scheduling.kv_unified
    if unified is None:
        unified = not (scheduling.parallel > 0 or scheduling.max_batch_size) or scheduling.no_batch
    share = total if unified else total // slot_count(config)
    if share < MIN_SLOT_CONTEXT_TOKENS and share < total:
        raise StartupError(
            f"--ctx-size {total} over {slot_count(config)} slots leaves {share} tokens each; at least "
            f"{MIN_SLOT_CONTEXT_TOKENS} are needed"
        )
    return min(share, window_tokens)


def engine_config(config: ServerConfig, slots: int, context_tokens: int) -> EngineConfig:
    """Options of the engine."""
    scheduling, cache = config.scheduling, config.prompt_cache
    batch_tokens = scheduling.max_batch_prefill_tokens
    if batch_tokens < 0:
        batch_tokens = 2 * scheduling.max_batch_prefill * min(scheduling.prefill_chunk_size or 512, 512)
    return EngineConfig(
        max_rows=slots,
        max_queue_depth=scheduling.max_queue_depth,
        context_tokens_per_slot=context_tokens,
        prefill_chunk_tokens=scheduling.prefill_chunk_size,
        prefill_grant_interval=scheduling.prefill_grant_interval,
        max_batch_prefill=scheduling.max_batch_prefill,
        max_batch_prefill_tokens=batch_tokens,
        kv_admission_watermark=scheduling.kv_admission_watermark,
        enable_preemption=scheduling.enable_preemption,
        decode_timeout_s=scheduling.decode_timeout_s or 300.0,
        context_shift=scheduling.context_shift,
        sleep_idle_s=scheduling.sleep_idle_s if scheduling.sleep_idle_s >= 0 else None,
        cache=CacheSettings(
            enabled=cache.enabled,
            capacity_bytes=cache.capacity_bytes if cache.capacity_bytes >= 0 else None,
            max_entries=cache.max_entries,
            ttl_s=cache.ttl_s,
            min_prefix_tokens=cache.min_prefix_tokens,
            partial_match=cache.apc_enabled,
        ),
    )


def runner_options(config: ServerConfig, name: str) -> RunnerOptions:
    """Options of the runner."""
    from mlxcel.config.option import parse_bytes
    from mlxcel.runners.generate.options import RunnerOptions

    budget = config.scheduling.kv_cache_budget
    scheduling = config.scheduling
    return RunnerOptions(
        name=name,
        device=config.model.device,  # type: ignore[arg-type]
        dtype=config.model.dtype,  # type: ignore[arg-type]
        threads=max(config.model.threads, 0),
        context_tokens=scheduling.ctx_size if slot_count(config) == 1 else 0,
        max_rows=slot_count(config),
        kv_budget_bytes=0 if budget in ("auto", "none") else parse_bytes(budget),
        backend=config.model.backend,  # type: ignore[arg-type]
        trust_remote_code=config.model.trust_remote_code,
    )


def responses_service(stores: StoresConfig) -> ResponsesService:
    """Stored responses and conversations under their caps."""
    responses = StoreLimits(stores.responses_max_entries, stores.responses_max_bytes, stores.responses_ttl_s)
    conversations = StoreLimits(stores.conversations_max_entries, stores.conversations_max_bytes, stores.conversations_ttl_s)
    return ResponsesService(ResponseStore(responses), ConversationStore(conversations))


def reasoning_echo(config: ServerConfig) -> ReasoningEchoStore:
    """The store of thinking text; it only serves the prompt cache, so it is off without one."""
    return ReasoningEchoStore(max_bytes=config.stores.reasoning_echo_max_bytes if config.prompt_cache.enabled else 0)


def generation_defaults(config: ServerConfig, generation_config: dict[str, Any]) -> GenerationOptions:
    """Sampling of a request that sets nothing: flag, then the checkpoint's own recommendation, then the built-in value."""
    sampling = config.sampling

    def pick(name: str, key: str) -> Any:
        recommended = generation_config.get(key)
        if f"sampling.{name}" in config.given or not isinstance(recommended, (int, float)):
            return getattr(sampling, name)
        return recommended

    return GenerationOptions(
        sampling=SamplingParams(
            temperature=float(pick("temperature", "temperature")),
            top_k=max(int(pick("top_k", "top_k")), 0),
            top_p=float(pick("top_p", "top_p")),
            min_p=sampling.min_p,
            typical_p=sampling.typical,
            top_n_sigma=sampling.top_n_sigma,
            repetition_penalty=sampling.repeat_penalty,
            repetition_context_tokens=sampling.repeat_last_n,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            dry_multiplier=sampling.dry_multiplier,
            dry_base=sampling.dry_base,
            dry_allowed_length=sampling.dry_allowed_length,
            dry_penalty_last_n=sampling.dry_penalty_last_n,
            xtc_probability=sampling.xtc_probability,
            xtc_threshold=sampling.xtc_threshold,
            mirostat=sampling.mirostat,
            mirostat_tau=sampling.mirostat_tau,
            mirostat_eta=sampling.mirostat_eta,
            dynatemp_range=sampling.dynatemp_range,
            dynatemp_exponent=sampling.dynatemp_exponent,
            logit_bias=sampling.logit_bias,
            seed=None if sampling.seed < 0 else sampling.seed,
        ),
        max_tokens=None if sampling.n_predict < 0 else sampling.n_predict,
        ignore_eos=sampling.ignore_eos,
        keep_tokens=config.scheduling.keep_tokens,
        dry_breaker_texts=sampling.dry_sequence_breakers,
    )


def _served_model(config: ServerConfig, source: Source, engine: EngineClient, context_tokens: int) -> ServedModel:
    tokenizer, options = source.tokenizer, config.template
    template_text = _template_text(config) or tokenizer.chat_template or ""
    if options.tool_call_parser and options.tool_call_parser not in FORMATS:
        raise StartupError(f"--tool-call-parser: must be one of {', '.join(sorted(FORMATS))}")
    chat_format = (
        FORMATS[options.tool_call_parser]
        if options.tool_call_parser
        else detect_format(template_text, tokenizer.token_id, source.model_type)
    )
    return ServedModel(
        name=source.name,
        context_tokens=context_tokens,
        client=engine,
        tokenizer=tokenizer,
        template=ChatTemplate.from_tokenizer(tokenizer, template_text or None),
        constraints=ConstraintFactory(tokenizer),
        tool_format=chat_format,
        reasoning=detect_reasoning(template_text, tokenizer.token_id),
        policy=ChatPolicy(
            template_kwargs=options.template_kwargs,
            skip_parsing=options.skip_chat_parsing,
            continue_final=options.prefill_assistant,
            thinking=options.reasoning,  # type: ignore[arg-type]
            reasoning_format=options.reasoning_format,  # type: ignore[arg-type]
            reasoning_effort=options.reasoning_effort,
            reasoning_budget_tokens=options.reasoning_budget_tokens,
            reasoning_budget_message=options.reasoning_budget_message,
            context_shift=config.scheduling.context_shift,
        ),
        aliases=source.aliases,
        meta=source.meta,
    )


def _template_text(config: ServerConfig) -> str:
    if config.template.template_file:
        try:
            return Path(config.template.template_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StartupError(f"--chat-template-file: cannot read the file: {error}") from None
    return config.template.template

"""Options turned into each room's own settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxcel.app.constraints import server_constraint
from mlxcel.config.adapters import named_adapters
from mlxcel.config.server import ServerConfig
from mlxcel.config.speculative import SpeculativeConfig
from mlxcel.core.errors import StartupError
from mlxcel.core.jobs import GenerationOptions
from mlxcel.core.sampling import SamplingParams
from mlxcel.engine.config import EngineConfig
from mlxcel.prefix_cache.settings import CacheSettings

if TYPE_CHECKING:
    from mlxcel.runners.generate.options import KvType, RunnerOptions


AUTO_SLOTS = 4
MIN_SLOT_CONTEXT_TOKENS = 512


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


def uses_draft_model(config: SpeculativeConfig) -> bool:
    """Whether the draft model is to be loaded.

    Raises:
        StartupError: one is asked for and none is named, or two drafters are asked for.
    """
    if config.spec_type == "draft-model" and not config.draft_model:
        raise StartupError("--spec-type draft-model: name the model with --draft-model")
    chosen = bool(config.draft_model) and config.spec_type in ("auto", "draft-model")
    if chosen and config.prompt_lookup == "on":
        raise StartupError("--draft-model and --prompt-lookup on exclude each other; leave one out")
    return chosen


def prompt_lookup(config: SpeculativeConfig) -> bool | None:
    """Whether to use prompt lookup; None where it is exact."""
    if config.spec_type == "prompt-lookup":
        return True
    if config.spec_type != "auto":
        return False
    return {"auto": None, "on": True, "off": False}[config.prompt_lookup]


def draft_tokens(config: SpeculativeConfig) -> int:
    """Most tokens of one proposal; 0 leaves it to the drafter."""
    limits = (config.draft_max, config.draft_block_size - 1)
    return min((limit for limit in limits if limit > 0), default=0)


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
        request_memory_budget_bytes=scheduling.request_memory_budget_bytes or None,
        prompt_lookup=prompt_lookup(config.speculative),
        draft_tokens=draft_tokens(config.speculative),
        sleep_idle_s=scheduling.sleep_idle_s if scheduling.sleep_idle_s >= 0 else None,
        cache=CacheSettings(
            enabled=cache.enabled,
            capacity_bytes=cache.capacity_bytes if cache.capacity_bytes >= 0 else None,
            max_entries=cache.max_entries,
            ttl_s=cache.ttl_s,
            min_prefix_tokens=cache.min_prefix_tokens,
            partial_match=cache.apc_enabled,
            directory=Path(cache.directory) if cache.directory else None,
            directory_capacity_bytes=cache.directory_bytes,
            snapshot_capacity_bytes=cache.snapshot_capacity_bytes,
            snapshot_max_entries=cache.snapshot_max_entries,
            snapshot_ttl_s=cache.snapshot_ttl_s,
        ),
    )


def runner_options(config: ServerConfig, name: str) -> RunnerOptions:
    """Options of the runner."""
    from mlxcel.config.option import parse_bytes
    from mlxcel.runners.generate.options import RopeOverrides, RunnerOptions

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
        kv_types=(_kv_type(scheduling.cache_type_k), _kv_type(scheduling.cache_type_v)),
        backend=config.model.backend,  # type: ignore[arg-type]
        kernels=config.model.kernels,  # type: ignore[arg-type]
        trust_remote_code=config.model.trust_remote_code,
        adapters=tuple(Path(path) for path, _ in named_adapters(config.adapters)),
        rope=RopeOverrides(**dataclasses.asdict(config.rope)),
    )


def _kv_type(name: str) -> KvType:
    """f16 stands for the decoder's own 16-bit type (or fp32, where it computes with that)."""
    return "auto" if name in ("f16", "fp16") else name  # type: ignore[return-value]


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
        constraint=server_constraint(config.constraints),
    )


def template_text(config: ServerConfig) -> str:
    if config.template.template_file:
        try:
            return Path(config.template.template_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StartupError(f"--chat-template-file: cannot read the file: {error}") from None
    return config.template.template

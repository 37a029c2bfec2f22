"""Prometheus metrics: documented names first, latency histograms after. Names and buckets live here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest

from mlxcel.core.events import Completed

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_GAP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


@dataclass(slots=True)
class RequestTotals:
    """Sums over completed requests; see :meth:`Metrics.record` for what counts."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    generation_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Gauges:
    """What the engine says at the moment of a scrape; the names follow the metric names."""

    slots_total: int = 0
    slots_available: int = 0
    queue_depth: int = 0
    batch_sequences_started: int = 0
    batch_sequences_completed: int = 0
    batch_prefill_tokens: int = 0
    batch_decode_tokens: int = 0
    batch_current_size: int = 0
    cache_pool_active: int = 0
    prompt_cache_hits: int = 0
    prompt_cache_lookups: int = 0
    prompt_cache_bytes: int = 0
    preemptions: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class Metrics:
    """All metrics of one server.

    Args:
        gauges: read at each scrape.
    """

    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self._totals = RequestTotals()
        self._gauges = gauges
        self._registry = CollectorRegistry()
        self._queue_s = self._histogram(
            "mlxcel_request_queue_seconds", "Time a request waited for a slot", _LATENCY_BUCKETS_S
        )
        self._ttft_s = self._histogram("mlxcel_time_to_first_token_seconds", "Time to the first token", _LATENCY_BUCKETS_S)
        self._gap_s = self._histogram(
            "mlxcel_inter_token_seconds", "Mean time between two tokens of a request", _GAP_BUCKETS_S
        )
        self._total_s = self._histogram(
            "mlxcel_request_seconds", "Time from admission to the last token", _LATENCY_BUCKETS_S
        )

    def record(self, *, prompt_tokens: int, completion_tokens: int, generation_s: float) -> None:
        """Count a completed request. Callers leave out cancelled streams, streamed text completions and native requests."""
        self._totals.requests += 1
        self._totals.prompt_tokens += prompt_tokens
        self._totals.completion_tokens += completion_tokens
        self._totals.generation_s += generation_s

    def observe_answer(self, answer: Completed) -> None:
        """Take the latencies of any finished generation, on whichever surface."""
        timings, tokens = answer.timings, answer.usage.completion_tokens
        self._queue_s.observe(timings.queue_s)
        self._ttft_s.observe(timings.queue_s + timings.prefill_s)
        self._total_s.observe(timings.queue_s + timings.prefill_s + timings.decode_s)
        if tokens > 1:
            self._gap_s.observe(timings.decode_s / (tokens - 1))

    def render(self) -> bytes:
        """The text exposition format, version 0.0.4."""
        return _documented_lines(self._totals, self._gauges()).encode() + generate_latest(self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self._registry)


_DOCUMENTED: tuple[tuple[str, str, str, str], ...] = (  # name, type, help, source
    (
        "mlxcel_requests_total",
        "counter",
        "Total number of completed generation requests; chat completion streams cancelled by the client are excluded",
        "requests",
    ),
    ("mlxcel_prompt_tokens_total", "counter", "Total prompt tokens processed", "prompt_tokens"),
    (
        "mlxcel_completion_tokens_total",
        "counter",
        "Total completion tokens of the requests counted in mlxcel_requests_total",
        "completion_tokens",
    ),
    ("mlxcel_generation_time_seconds_total", "counter", "Total generation time in seconds", "generation_s"),
    ("mlxcel_slots_total", "gauge", "Total number of parallel slots", "slots_total"),
    ("mlxcel_slots_available", "gauge", "Available parallel slots", "slots_available"),
    ("mlxcel_queue_depth", "gauge", "Current prefill queue depth", "queue_depth"),
    ("mlxcel_batch_sequences_started", "counter", "Total sequences that entered prefill", "batch_sequences_started"),
    (
        "mlxcel_batch_sequences_completed",
        "counter",
        "Total sequences that completed generation",
        "batch_sequences_completed",
    ),
    ("mlxcel_batch_prefill_tokens_total", "counter", "Cumulative prefill tokens processed", "batch_prefill_tokens"),
    ("mlxcel_batch_decode_tokens_total", "counter", "Cumulative decode tokens generated", "batch_decode_tokens"),
    ("mlxcel_batch_current_size", "gauge", "Current active batch size", "batch_current_size"),
    ("mlxcel_cache_pool_active", "gauge", "Active cache entries", "cache_pool_active"),
    ("mlxcel_prompt_cache_hits_total", "counter", "Prompt-cache lookups that reused a prefix", "prompt_cache_hits"),
    ("mlxcel_prompt_cache_lookups_total", "counter", "Prompt-cache lookups", "prompt_cache_lookups"),
    ("mlxcel_prompt_cache_bytes", "gauge", "Bytes held by the prompt cache", "prompt_cache_bytes"),
    ("mlxcel_preemptions_total", "counter", "Sequences that had to give up their slot", "preemptions"),
    ("mlxcel_draft_tokens_total", "counter", "Tokens proposed by speculative decoding", "drafted_tokens"),
    ("mlxcel_draft_tokens_accepted_total", "counter", "Of these, the ones that were right", "accepted_tokens"),
)


def _documented_lines(totals: RequestTotals, gauges: Gauges) -> str:
    """The documented metrics, written here because the client library insists on names that end in ``_total``."""
    lines: list[str] = []
    for name, kind, text, source in _DOCUMENTED:
        value = getattr(totals if hasattr(totals, source) else gauges, source)
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value}"]
    return "\n".join(lines) + "\n"

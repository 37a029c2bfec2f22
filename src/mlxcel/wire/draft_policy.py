"""GET /v1/internal/mtp-policy: whether speculative decoding runs, and whether it pays."""

from __future__ import annotations

import os
import platform
from typing import Any, Literal

from mlxcel.engine.stats import EngineStats

SCHEMA_VERSION = 1
SAMPLES_REQUIRED = 4
_Reason = Literal["no_mtp_dispatch", "worker_not_ready"]


def render_draft_policy(target: str | None, drafter: str | None, stats: EngineStats | None) -> dict[str, Any]:
    """The documented payload.

    Args:
        target: the served model; None where nothing generates.
        drafter: the draft model; prompt lookup has none.
        stats: None while the model loads, and where nothing generates.
    """
    body: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "state": "unavailable",
        "reason": _why_unavailable(target, drafter, stats),
        "verdict": None,
        "mtp_enabled": False,
        "target": target,
        "drafter": drafter,
        "hardware": f"{platform.system()} {platform.machine()}, {os.cpu_count() or 1} cores",
        "block_size": None,
        "acceptance_rate": None,
        "samples": 0,
        "samples_required": SAMPLES_REQUIRED,
        "samples_remaining": SAMPLES_REQUIRED,
    }
    if stats is None or body["reason"] is not None:
        return body
    samples = min(stats.drafted_works, SAMPLES_REQUIRED)
    settled = samples == SAMPLES_REQUIRED
    verdict = "enable" if stats.drafting_pays else "decline"
    return body | {
        "state": "settled" if settled else "profiling",
        "verdict": verdict if settled else None,
        "mtp_enabled": stats.drafting_pays,
        "block_size": stats.draft_tokens + 1,
        "acceptance_rate": stats.accepted_tokens / stats.drafted_tokens if stats.drafted_tokens else None,
        "samples": samples,
        "samples_remaining": SAMPLES_REQUIRED - samples,
    }


def _why_unavailable(target: str | None, drafter: str | None, stats: EngineStats | None) -> _Reason | None:
    if target is None or drafter is None:
        return "no_mtp_dispatch"
    return "worker_not_ready" if stats is None or stats.draft_kind is None else None  # it loads, or sleeps

"""What a translation may know about the server, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mlxcel.core.jobs import GenerationOptions, Priority


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Constant while the server runs.

    Attributes:
        model_name: shown as ``model`` in every answer.
        defaults: sampling and limits of a request that sets nothing.
        compat: the ``--compat`` switch.
        reasoning_alias: second name under which reasoning text is repeated; None for none.
    """

    model_name: str
    defaults: GenerationOptions = field(default_factory=GenerationOptions)
    compat: Literal["strict", "lenient"] = "strict"
    reasoning_alias: str | None = "reasoning"


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Known about one request besides its body.

    Attributes:
        request_id: bare unique id; dialects put their prefix before it.
        created_s: Unix time.
        priority: from ``X-Priority``.
        cache_scope: derived from the API key; keeps tenants apart in the prompt cache.
    """

    facts: ServerFacts
    request_id: str
    created_s: float
    priority: Priority = Priority.NORMAL
    cache_scope: str = ""


def parse_priority(header: str | None) -> Priority | None:
    """``X-Priority`` as a priority; None for an unknown value (which counts as normal and is worth one log line)."""
    if header is None:
        return Priority.NORMAL
    return {"high": Priority.HIGH, "normal": Priority.NORMAL, "low": Priority.LOW}.get(header.strip().lower())

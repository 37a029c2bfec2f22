"""GET /v1/models and GET /health bodies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One entry of the model list. ``capabilities`` names what it serves; extra keys follow the documented ones."""

    id: str
    created_s: float
    capabilities: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    meta: dict[str, Any] | None = None


def render_models(models: Sequence[ListedModel]) -> dict[str, Any]:
    """The list body."""
    return {"object": "list", "data": [model_object(model) for model in models]}


def model_object(model: ListedModel) -> dict[str, Any]:
    """One model; the keys that are not OpenAI's are left out when empty."""
    body: dict[str, Any] = {"id": model.id, "object": "model", "created": int(model.created_s), "owned_by": "user"}
    if model.aliases:
        body["aliases"] = list(model.aliases)
    if model.capabilities:
        body["capabilities"] = list(model.capabilities)
    if model.meta:
        body["meta"] = model.meta
    return body

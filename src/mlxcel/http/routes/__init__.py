"""Every route of the server, by surface. ``all_routes`` is the one table."""

from __future__ import annotations

from mlxcel.http.route import Route
from mlxcel.http.routes import (
    adapters,
    chat,
    completions,
    embeddings,
    messages,
    native,
    operations,
    rerank,
    responses,
    slots,
    status,
    streams,
    tokens,
)


def all_routes() -> tuple[Route, ...]:
    """The table, in the order of the docs page."""
    return (
        *chat.ROUTES,
        *completions.ROUTES,
        *responses.ROUTES,
        *messages.ROUTES,
        *native.ROUTES,
        *embeddings.ROUTES,
        *rerank.ROUTES,
        *tokens.ROUTES,
        *status.ROUTES,
        *operations.ROUTES,
        *slots.ROUTES,
        *adapters.ROUTES,
        *streams.ROUTES,
    )

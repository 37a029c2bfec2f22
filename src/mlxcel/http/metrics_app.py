"""GET /metrics on an address of its own, for scrapers that hold no key."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as AsgiRoute

from mlxcel.http.guards import HostGuard
from mlxcel.observe.metrics import CONTENT_TYPE, Metrics


def metrics_app(metrics: Metrics, *, guard_host: bool) -> Starlette:
    """An application with the one route.

    Args:
        guard_host: refuse requests whose Host is not this machine (for loopback binds).
    """

    async def scrape(request: Request) -> Response:
        return Response(metrics.render(), headers={"content-type": CONTENT_TYPE})

    middleware = [Middleware(HostGuard)] if guard_host else []
    return Starlette(routes=[AsgiRoute("/metrics", scrape, methods=["GET"])], middleware=middleware)

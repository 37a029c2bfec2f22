"""The route table's rows. Routing, authentication, the OpenAPI document and the docs page all read the same rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pydantic import BaseModel
from starlette.responses import Response

from mlxcel.http.call import Call
from mlxcel.http.responses import Dialect

Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint.

    Attributes:
        method: upper case; GET answers HEAD too.
        path: documented path; ``{name}`` marks a path parameter.
        handler: async function of a call.
        summary: one line for the docs.
        aliases: further paths with the same handler.
        dialect: error envelope.
        open: answers without a key when one is configured.
        accepts_x_api_key: the key may also come in ``x-api-key`` (Anthropic's clients send it there).
        request: model of the JSON body, when there is one.
        streams: may answer with an event stream.
        statuses: documented failures besides those that any route can give.
        successes: documented successes.
        tag: section of the docs page.
        query: names of query parameters.
        media_type: of the answer, when it is not JSON.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    aliases: tuple[str, ...] = ()
    dialect: Dialect = "openai"
    open: bool = False
    accepts_x_api_key: bool = False
    request: type[BaseModel] | None = None
    streams: bool = False
    statuses: tuple[int, ...] = field(default=())
    successes: tuple[int, ...] = (200,)
    tag: str = "Server"
    query: tuple[str, ...] = ()
    media_type: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.aliases)

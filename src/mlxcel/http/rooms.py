"""The object graph that routes may use; built by ``mlxcel.app`` and never changed by a route."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from mlxcel.services.chat import ChatService
from mlxcel.services.completion import CompletionService
from mlxcel.services.status import StatusService
from mlxcel.services.tokens import TokenService
from mlxcel.wire.context import ServerFacts

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Rooms:
    """Services and limits of one server.

    Attributes:
        facts: constant data for the wire modules.
        chat: conversations.
        completion: raw prompts.
        tokens: the tokenizer.
        status: health, slots and counters.
        max_body_bytes: largest request body.
        ping_interval_s: silence on a stream before a keep-alive; None for none.
    """

    facts: ServerFacts
    chat: ChatService
    completion: CompletionService
    tokens: TokenService
    status: StatusService
    max_body_bytes: int = 64 * 2**20
    ping_interval_s: float | None = 5.0
    _logged: set[str] = field(default_factory=set)

    def log_once(self, key: str, message: str) -> None:
        """Log a warning the first time ``key`` comes up."""
        if key not in self._logged:
            self._logged.add(key)
            log.warning(message)

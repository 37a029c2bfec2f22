"""Every error mlxcel raises on purpose, as one tree.

::

    MlxcelError
    ├── RequestError                 the caller can fix it; nothing was generated
    │   ├── InvalidRequest           a field is missing, mistyped or out of range
    │   ├── ContextOverflow          the prompt does not fit the context window
    │   ├── NotFound                 an id names nothing (any more)
    │   │   └── StoredNotFound       the id of a stored response does
    │   ├── PayloadTooLarge          the body or an upload is over its limit
    │   ├── FeatureDisabled          an operator switched the route off
    │   ├── NoModelForRoute          no loaded model serves this route
    │   └── CapabilityMissing        the loaded model cannot do this
    ├── AuthError
    │   ├── MissingKey
    │   └── InvalidKey
    ├── CapacityError                retry later
    │   ├── ServerBusy               the queue is full
    │   ├── ModelLoading             the model is not ready yet
    │   ├── MemoryBudgetExceeded     the request's worst case does not fit in memory
    │   └── TimedOut                 a worker did not answer in time
    ├── GenerationFailed             one row failed; its neighbours go on
    ├── VocabularyRangeError         a token id that the model does not have (documented as a server error)
    ├── Cancelled                    the caller left; never shown to a client
    └── StartupError                 one line for the terminal, exit code 1

Errors know no HTTP. Each wire dialect owns one table from these classes to its status and body
(``wire/errors.py``, ``wire/anthropic/errors.py``). Messages are written for the person who
sent the request: they name the field and the fix, never a path, a traceback or the offending document.
"""

from __future__ import annotations


class MlxcelError(Exception):
    """Base class. ``message`` is safe to show to a client.

    Args:
        message: one sentence, naming the field and the fix where there is one.
        param: dotted path of the offending request field, when there is one.
        code: machine-readable detail in the dialect-neutral spelling (``context_length_exceeded``).
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class RequestError(MlxcelError):
    """The request cannot be served as sent."""


class InvalidRequest(RequestError):
    """A field is missing, has the wrong type or an unusable value."""


class ContextOverflow(RequestError):
    """The prompt is at or over the context window of one slot.

    Args:
        prompt_tokens: tokens of the rendered prompt.
        context_tokens: the effective per-slot window.
    """

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        super().__init__(
            f"the request has {prompt_tokens} prompt tokens, but the context window is {context_tokens} tokens; "
            "shorten the input or start the server with a larger --ctx-size",
            code="context_length_exceeded",
        )
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class NotFound(RequestError):
    """An id or name refers to nothing, or to something that has expired."""


class StoredNotFound(NotFound):
    """A stored response does not exist, has expired or belongs to another key."""


class PayloadTooLarge(RequestError):
    """The request body or an upload is larger than its limit."""


class FeatureDisabled(RequestError):
    """The operator switched this feature off."""


class NoModelForRoute(RequestError):
    """No loaded model serves this route; the message names the flag that would."""


class CapabilityMissing(RequestError):
    """The loaded model cannot have this capability."""


class AuthError(MlxcelError):
    """The request carries no usable key."""


class MissingKey(AuthError):
    """No key was sent."""


class InvalidKey(AuthError):
    """The key sent is not one of the server's."""


class CapacityError(MlxcelError):
    """The server cannot take the request now; a retry may succeed."""


class ServerBusy(CapacityError):
    """The queue is full. The message is part of the documented contract."""

    def __init__(self, message: str = "All slots are busy. Please try again later.") -> None:
        super().__init__(message)


class ModelLoading(CapacityError):
    """The model is still loading."""

    def __init__(self, message: str = "The model is still loading. Please try again later.") -> None:
        super().__init__(message)


class MemoryBudgetExceeded(CapacityError):
    """The worst case of a request needs more memory than the budget leaves.

    Args:
        estimated_bytes: what the request could need.
        budget_bytes: what one request may use.
    """

    def __init__(self, estimated_bytes: int, budget_bytes: int) -> None:
        super().__init__(
            f"the request may need {estimated_bytes} bytes, more than the request memory budget of {budget_bytes} bytes; "
            "lower max_tokens or shorten the prompt"
        )
        self.estimated_bytes = estimated_bytes
        self.budget_bytes = budget_bytes


class TimedOut(CapacityError):
    """A worker did not answer within its time limit."""


class GenerationFailed(MlxcelError):
    """The generation of one request failed inside the engine."""


class VocabularyRangeError(MlxcelError):
    """A token id outside the vocabulary. The status (500) and the message are part of the documented contract."""

    def __init__(self, token_id: int, vocab_size: int) -> None:
        super().__init__(f"token id {token_id} is out of vocabulary range (vocab_size {vocab_size})")


class Cancelled(MlxcelError):
    """The caller went away, or an operator stopped the request."""

    def __init__(self, message: str = "the request was cancelled") -> None:
        super().__init__(message)


class StartupError(MlxcelError):
    """The process cannot start; the command line prints ``message`` as one line and exits with 1."""

"""The error envelope of every surface but Anthropic's (the OpenAI form)."""

from __future__ import annotations

from typing import Any

from mlxcel.core import errors

_TYPES: dict[type[errors.MlxcelError], str] = {
    errors.InvalidRequest: "invalid_request_error",
    errors.ContextOverflow: "exceed_context_size_error",
    errors.NotFound: "not_found_error",
    errors.StoredNotFound: "invalid_request_error",  # what OpenAI answers for an id that it does not know
    errors.PayloadTooLarge: "invalid_request_error",
    errors.FeatureDisabled: "feature_disabled",
    errors.NoModelForRoute: "not_implemented",
    errors.CapabilityMissing: "not_supported_error",
    errors.MissingKey: "missing_api_key",
    errors.InvalidKey: "invalid_api_key",
    errors.TimedOut: "server_timeout",
    errors.MemoryBudgetExceeded: "request_memory_budget_exceeded",
    errors.CapacityError: "server_busy",
}


def error_type(error: errors.MlxcelError) -> str:
    """The documented ``type`` of an error."""
    return next((_TYPES[kind] for kind in type(error).__mro__ if kind in _TYPES), "server_error")


def error_object(error: errors.MlxcelError) -> dict[str, Any]:
    """The value of ``error`` in a body or a stream frame."""
    body: dict[str, Any] = {"message": error.message, "type": error_type(error), "param": error.param, "code": error.code}
    if isinstance(error, errors.MemoryBudgetExceeded):
        body["estimated_bytes"] = error.estimated_bytes
        body["budget_bytes"] = error.budget_bytes
    if isinstance(error, errors.ContextOverflow):
        body["n_prompt_tokens"] = error.prompt_tokens
        body["n_ctx"] = error.context_tokens
    return body


def error_body(error: errors.MlxcelError) -> dict[str, Any]:
    """A whole response body."""
    return {"error": error_object(error)}

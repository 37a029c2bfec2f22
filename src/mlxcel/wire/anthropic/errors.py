"""The Anthropic error envelope: the only one that the Anthropic SDKs and agents read."""

from __future__ import annotations

from typing import Any

from mlxcel.core import errors

_TYPES: dict[type[errors.MlxcelError], str] = {
    errors.RequestError: "invalid_request_error",
    errors.NotFound: "not_found_error",
    errors.PayloadTooLarge: "request_too_large",
    errors.FeatureDisabled: "permission_error",
    errors.NoModelForRoute: "not_implemented",
    errors.CapabilityMissing: "not_supported_error",
    errors.AuthError: "authentication_error",
    errors.TimedOut: "timeout_error",
    errors.CapacityError: "overloaded_error",
}


def error_type(error: errors.MlxcelError) -> str:
    """Anthropic's word for an error; the documented mlxcel word where Anthropic has none."""
    return next((_TYPES[kind] for kind in type(error).__mro__ if kind in _TYPES), "api_error")


def error_body(error: errors.MlxcelError) -> dict[str, Any]:
    """A whole response body, and the data of an ``error`` stream event."""
    return {"type": "error", "error": {"type": error_type(error), "message": _message(error)}}


def _message(error: errors.MlxcelError) -> str:
    """Coding agents start to compact on the words "prompt is too long", so an overflow leads with them."""
    if isinstance(error, errors.ContextOverflow):
        return f"prompt is too long: {error.prompt_tokens} tokens > {error.context_tokens} maximum ({error.message})"
    return error.message

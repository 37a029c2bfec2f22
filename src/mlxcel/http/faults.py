"""Errors that only exist because of HTTP."""

from __future__ import annotations

from mlxcel.core.errors import InvalidRequest


class UnsupportedMediaType(InvalidRequest):
    """The body is declared as something that is not JSON (415)."""


class ForeignHost(InvalidRequest):
    """The Host header names another machine (403)."""

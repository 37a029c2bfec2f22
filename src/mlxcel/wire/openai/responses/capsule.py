"""Capsules: what an ``encrypted_content`` field holds here. Base64url of plain JSON; nothing in it is secret or trusted.

A client sends a capsule back unchanged. Its content is as much input as the rest of the request and is validated alike.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import orjson

_VERSION = 1


def seal(kind: str, content: Mapping[str, Any]) -> str:
    """A capsule of a kind."""
    raw = orjson.dumps({"mlxcel": _VERSION, "kind": kind} | dict(content))
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def unseal(kind: str, capsule: str) -> dict[str, Any] | None:
    """The content of a capsule of that kind, or None for anything else (another server's, or a damaged one)."""
    try:
        raw = base64.b64decode(capsule + "=" * (-len(capsule) % 4), altchars=b"-_", validate=True)
        content = orjson.loads(raw)
    except (binascii.Error, ValueError):
        return None
    if not isinstance(content, dict) or content.get("mlxcel") != _VERSION or content.get("kind") != kind:
        return None
    return content

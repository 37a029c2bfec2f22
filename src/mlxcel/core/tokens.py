"""Tokens as a client may see them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """One token with the exact bytes it stands for, which need not be whole UTF-8."""

    id: int
    bytes: bytes

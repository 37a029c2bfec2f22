"""How requests steer thinking: words of effort and template arguments, spelled alike on several surfaces."""

from __future__ import annotations

_OFF_WORDS = frozenset({"none", "off", "disabled", "false", "0"})


def effort_enables(word: str) -> bool:
    """Whether an effort word asks for thinking; every word but the documented ones for "off" does."""
    return word.strip().lower() not in _OFF_WORDS

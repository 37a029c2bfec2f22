"""How requests steer thinking: words of effort and template arguments, spelled alike on several surfaces."""

from __future__ import annotations

from typing import Any

from mlxcel.wire.sampling import ExtraBody

_OFF_WORDS = frozenset({"none", "off", "disabled", "false", "0"})


def effort_enables(word: str) -> bool:
    """Whether an effort word asks for thinking; every word but the documented ones for "off" does."""
    return word.strip().lower() not in _OFF_WORDS


def template_kwargs(
    root: dict[str, Any] | None, extra: ExtraBody | None, preserve_thinking: bool | None = None
) -> dict[str, Any]:
    """The request's template variables. Of the documented spellings the first that is present wins.

    Args:
        root: ``chat_template_kwargs`` of the body.
        extra: the nested ``extra_body``, with ``chat_template_kwargs`` or a flat ``preserve_thinking``.
        preserve_thinking: the flat form at the root.
    """
    if root is not None:
        return root
    if extra is not None and extra.chat_template_kwargs is not None:
        return extra.chat_template_kwargs
    if extra is not None and extra.preserve_thinking is not None:
        preserve_thinking = extra.preserve_thinking
    return {} if preserve_thinking is None else {"preserve_thinking": preserve_thinking}

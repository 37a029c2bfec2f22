"""Where a family's prompts have a place for an instruction."""

from __future__ import annotations

_QUERY_TOKENS = 10


def format_text(family: str, text: str, instruction: str | None) -> str:
    """The model's input for a text; most families take it as it is.

    Qwen3-Embedding has a place for an instruction. A text of ColQwen2 is a query, which gets further tokens, as in training.
    """
    if family == "colqwen2":
        return f"Query: {text}" + "<|endoftext|>" * _QUERY_TOKENS
    if instruction and family == "qwen3":
        return f"Instruct: {instruction}\nQuery: {text}"
    return text

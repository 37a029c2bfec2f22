"""Where a family's prompts have a place for an instruction."""

from __future__ import annotations


def format_text(family: str, text: str, instruction: str | None) -> str:
    """The model's input for a text; families without a place for instructions leave it as it is.

    Qwen3-Embedding's form is the one of its model card.
    """
    if instruction and family == "qwen3":
        return f"Instruct: {instruction}\nQuery: {text}"
    return text

"""Compacted histories: POST /v1/responses/compact, and compaction ahead of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from mlxcel.core.errors import InvalidRequest
from mlxcel.core.events import CompactionCompleted
from mlxcel.core.usage import Usage
from mlxcel.wire.context import RequestContext
from mlxcel.wire.openai.responses.capsule import seal
from mlxcel.wire.openai.responses.envelope import response_id, usage_object
from mlxcel.wire.openai.responses.history import HistoryItem, Summary, segments
from mlxcel.wire.openai.responses.items import (
    Input,
    MessageItem,
    ReasoningItem,
    dump_item,
)
from mlxcel.wire.openai.responses.request import InputTokensRequest

_MAX_SUMMARY_TOKENS = 16384
_ID_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


class CompactRequest(InputTokensRequest):
    """Request body of a stand-alone compaction: the full history in ``input``."""

    model: str
    input: Input
    stream: bool | None = None
    keep_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=_MAX_SUMMARY_TOKENS)] | None = None


def refuse_what_compaction_lacks(request: CompactRequest) -> None:
    """
    Raises:
        InvalidRequest: a field that a stand-alone compaction cannot have.
    """
    for field, given in (
        ("stream", request.stream),
        ("previous_response_id", request.previous_response_id is not None),
        ("conversation", request.conversation is not None),
    ):
        if given:
            raise InvalidRequest(
                f"'{field}' is not served here; send the full history in 'input' and read one plain answer", param=field
            )


def system_items(history: Sequence[HistoryItem]) -> list[MessageItem]:
    """The system and developer messages, which no compaction touches."""
    return [item for item in history if isinstance(item, MessageItem) and item.is_system]


def retained_items(history: Sequence[HistoryItem], done: CompactionCompleted) -> list[HistoryItem]:
    """What is kept as it is: the latest user message and the newest pieces."""
    pieces = segments(history)
    kept = [item for piece in pieces[done.keep_from :] for item in piece]
    return kept if done.keep_user is None else [pieces[done.keep_user][0], *kept]


def shortened(history: Sequence[HistoryItem], done: CompactionCompleted) -> list[HistoryItem]:
    """The history that stands for the whole one from now on."""
    return [*system_items(history), Summary(done.summary), *retained_items(history, done)]


def compaction_item(history: Sequence[HistoryItem], done: CompactionCompleted) -> dict[str, Any]:
    """The output item, still without an id. Sent back as input, it takes the place of everything before it."""
    retained = [_dumped(item) for item in retained_items(history, done)]
    return {"type": "compaction", "encrypted_content": seal("compaction", {"summary": done.summary, "items": retained})}


def render_compaction(
    history: Sequence[HistoryItem], done: CompactionCompleted, usage: Usage, context: RequestContext
) -> dict[str, Any]:
    """The answer of POST /v1/responses/compact."""
    kept = [*system_items(history), *retained_items(history, done)]
    output = [_shown(item, f"{context.request_id}{place:02x}") for place, item in enumerate(kept)]
    item_id = f"cmp_{context.request_id}{len(kept):02x}"
    return {
        "id": response_id(context),
        "object": "response.compaction",
        "created_at": int(context.created_s),
        "model": context.facts.model_name,
        "output": [*output, {"id": item_id} | compaction_item(history, done) | {"status": "completed"}],
        "usage": usage_object(usage),
    }


def _dumped(item: HistoryItem) -> dict[str, Any]:
    return {} if isinstance(item, Summary) else dump_item(item)


def _shown(item: HistoryItem, stem: str) -> dict[str, Any]:
    """An input item as an output item: with an id, a status, and content as a list of parts."""
    shown = _dumped(item)
    if isinstance(item, MessageItem):
        kind = "output_text" if item.role == "assistant" else "input_text"
        if isinstance(item.content, str):
            shown["content"] = [{"type": kind, "text": item.content}]
        for part in shown["content"]:
            if part["type"] in ("text", "input_text", "output_text"):
                part["type"] = kind
            if kind == "output_text":
                part.setdefault("annotations", [])
    elif isinstance(item, ReasoningItem):
        shown.setdefault("summary", [])
    return {"id": f"{_ID_PREFIXES[shown['type']]}_{stem}"} | shown | {"status": "completed"}

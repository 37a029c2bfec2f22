"""Items to messages, and where a history may be cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlxcel.core.chat import Message, Part, TextPart, ToolCall
from mlxcel.core.errors import InvalidRequest
from mlxcel.wire.openai.responses.capsule import unseal
from mlxcel.wire.openai.responses.items import (
    CompactionItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    ItemReference,
    MessageItem,
    ReasoningItem,
    UnservedItem,
    parse_items,
    parts_of,
)
from mlxcel.wire.turns import TurnBuilder

SUMMARY_HEAD = "Summary of the earlier part of this conversation:\n"

FlatName = Callable[[str | None, str], str]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a compaction item stands for besides its retained items."""

    text: str


HistoryItem = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem | Summary


def unfold(items: Sequence[Item]) -> list[HistoryItem]:
    """The items that count. A compaction item takes the place of all before it except system and developer messages.

    Raises:
        InvalidRequest: an item that is not served, or a capsule that this server did not make.
    """
    history: list[HistoryItem] = []
    for index, item in enumerate(items):
        path = f"input[{index}]"
        if isinstance(item, CompactionItem):
            system = [kept for kept in history if isinstance(kept, MessageItem) and kept.is_system]
            history = [*system, *_unsealed(item, path)]
        elif isinstance(item, UnservedItem):
            raise InvalidRequest(f"'{path}.type': items of this type are not served", param=f"{path}.type")
        elif isinstance(item, ItemReference):
            raise InvalidRequest(f"'{path}.id': no stored item has this id (any more)", param=f"{path}.id")
        else:
            history.append(item)
    return history


def _unsealed(item: CompactionItem, path: str) -> list[HistoryItem]:
    capsule = unseal("compaction", item.encrypted_content)
    summary, documents = (capsule or {}).get("summary"), (capsule or {}).get("items")
    if not isinstance(summary, str) or not isinstance(documents, list):
        raise InvalidRequest(
            f"'{path}.encrypted_content': not a compaction of this server", param=f"{path}.encrypted_content"
        )
    retained = parse_items(documents)
    if any(isinstance(inner, CompactionItem) for inner in retained):
        raise InvalidRequest(f"'{path}.encrypted_content': nested compaction", param=f"{path}.encrypted_content")
    return [Summary(summary), *unfold(retained)]


def to_messages(history: Sequence[HistoryItem], flat_name: FlatName) -> tuple[Message, ...]:
    """Neutral messages of a history.

    Args:
        history: unfolded items.
        flat_name: the declared name of a function called by namespace and name.

    Raises:
        InvalidRequest: a content part that is not served.
    """
    turns = TurnBuilder()
    summary: list[Part] = []
    for index, item in enumerate(history):
        path = f"input[{index}]"
        if isinstance(item, Summary):
            summary = [TextPart(SUMMARY_HEAD + item.text)]
            continue
        if isinstance(item, MessageItem) and item.role == "user":
            parts = parts_of(item.content, f"{path}.content")
            turns.user([*summary, TextPart("\n\n"), *parts] if summary else parts)
            summary = []
            continue
        if summary:
            turns.user(summary)
            summary = []
        _add(turns, item, path, flat_name)
    if summary:
        turns.user(summary)
    return turns.finish()


def _add(turns: TurnBuilder, item: HistoryItem, path: str, flat_name: FlatName) -> None:
    if isinstance(item, MessageItem):
        parts = parts_of(item.content, f"{path}.content")
        if item.is_system:
            turns.system(parts)
            return
        if turns.has_answer:
            turns.end_turn()
        turns.assistant(parts)
    elif isinstance(item, ReasoningItem):
        if turns.has_answer:
            turns.end_turn()
        if item.text:
            turns.thinking(item.text)
    elif isinstance(item, FunctionCallItem):
        turns.call(ToolCall(item.call_id, flat_name(item.namespace, item.name), item.arguments))
    elif isinstance(item, FunctionCallOutputItem):
        turns.tool_result(item.call_id, parts_of(item.output, f"{path}.output"))


def segments(history: Sequence[HistoryItem]) -> list[list[HistoryItem]]:
    """The history in the smallest pieces that may be told apart: cut before a user turn and after a completed tool group.

    A function call is never in another piece than its output. System messages and summaries are not part of any.
    """
    items = [item for item in history if not _stands_apart(item)]
    last_output = {item.call_id: index for index, item in enumerate(items) if isinstance(item, FunctionCallOutputItem)}
    pieces: list[list[HistoryItem]] = []
    open_until = -1  # index of the last output of a call made so far
    for index, item in enumerate(items):
        starts_user_turn = isinstance(item, MessageItem) and item.role == "user"
        ends_tool_group = (
            index > 0
            and isinstance(items[index - 1], FunctionCallOutputItem)
            and not isinstance(item, FunctionCallOutputItem)
        )
        if not pieces or ((starts_user_turn or ends_tool_group) and open_until < index):
            pieces.append([])
        pieces[-1].append(item)
        if isinstance(item, FunctionCallItem):
            open_until = max(open_until, last_output.get(item.call_id, -1))
    return pieces


def _stands_apart(item: HistoryItem) -> bool:
    return isinstance(item, Summary) or (isinstance(item, MessageItem) and item.is_system)

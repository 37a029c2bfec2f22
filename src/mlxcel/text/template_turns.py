"""Turns in the order that a template accepts.

Agents send system turns in mid-conversation, several user turns in a row, and user text right after tool results. Many
templates refuse that ("System role not supported", "roles must alternate") or drop it in silence. What a template cannot
take is moved into the neighbouring turn, so that it is neither refused nor lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mlxcel.core.chat import Message, TextPart, ToolCall

Probe = Callable[[Sequence[Message]], str | None]


@dataclass(frozen=True, slots=True)
class TurnHabits:
    """Which orders of turns one template accepts.

    Attributes:
        system: where system turns may stand; "first" is one, at the head.
        repeats_roles: user or assistant turns may follow one another.
        user_after_tool: a user turn may follow a tool result.
    """

    system: Literal["anywhere", "first", "never"] = "anywhere"
    repeats_roles: bool = True
    user_after_tool: bool = True


def find_turn_habits(probe: Probe) -> TurnHabits:
    """Try a template on small conversations.

    A habit is only assumed when the template renders the same conversation without the turn in question: a template that
    fails for another reason is left alone.

    Args:
        probe: renders a conversation; None when the template refuses it.
    """
    ask, answer, more = _turn("user", 1), _turn("assistant", 2), _turn("user", 3)
    head, second, middle = _turn("system", 4), _turn("system", 5), _turn("system", 6)
    call = Message("assistant", tool_calls=(ToolCall("probe00id", "probe_function", '{"probe_key": "probe_value"}'),))
    result = Message("tool", (_part(7),), tool_call_id="probe00id")

    def takes(*turns: Message) -> bool:
        rendered = probe(turns)
        return rendered is not None and all(turn.text in rendered for turn in turns)

    system: Literal["anywhere", "first", "never"] = "anywhere"
    if takes(ask, answer, more):
        if not takes(head, ask, answer, more):
            system = "never"
        elif not takes(head, second, ask, answer, middle, more):
            system = "first"
    return TurnHabits(
        system=system,
        repeats_roles=not takes(ask, answer, more) or takes(ask, more, answer, answer, more),
        user_after_tool=not takes(ask, call, result, answer, more) or takes(ask, call, result, more),
    )


def _turn(role: Literal["system", "user", "assistant"], number: int) -> Message:
    return Message(role, (_part(number),))


def _part(number: int) -> TextPart:
    return TextPart(f"probe text {number}")


def fit_turns(messages: Sequence[Message], habits: TurnHabits) -> tuple[Message, ...]:
    """The conversation as the template accepts it; nothing of it is left out."""
    turns = tuple(messages)
    if habits.system != "anywhere":
        turns = _fold_system(turns, keeps_head=habits.system == "first")
    if not habits.user_after_tool:
        turns = _fold_after_tools(turns)
    return turns if habits.repeats_roles else _join_neighbours(turns)


def _fold_system(messages: tuple[Message, ...], *, keeps_head: bool) -> tuple[Message, ...]:
    """System turns at the head become one, or open the first user turn; a later one joins the user turn before it, else
    the one after it, else it is a user turn of its own."""
    count = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
    turns: list[Message] = []
    waiting: Message | None = None
    for message in messages[:count]:
        waiting = message if waiting is None else _joined(waiting, message)
    if waiting is not None and keeps_head:
        turns, waiting = [waiting], None
    for message in messages[count:]:
        if message.role == "system" and waiting is None and turns and turns[-1].role == "user":
            turns[-1] = _joined(turns[-1], message)
        elif message.role == "system":
            waiting = message if waiting is None else _joined(waiting, message)
        elif waiting is not None and message.role == "user":
            turns.append(replace(_joined(waiting, message), role="user", name=message.name))
            waiting = None
        else:
            turns += [*_as_user(waiting), message]
            waiting = None
    return (*turns, *_as_user(waiting))


def _as_user(message: Message | None) -> list[Message]:
    return [] if message is None else [replace(message, role="user")]


def _fold_after_tools(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Text of a user turn after tool results goes to the end of the last result. Media need a turn of their own."""
    turns: list[Message] = []
    for message in messages:
        if message.role == "user" and turns and turns[-1].role == "tool" and not message.media:
            turns[-1] = _joined(turns[-1], message)
        else:
            turns.append(message)
    return tuple(turns)


def _join_neighbours(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Neighbouring user turns become one, assistant turns too unless the earlier one ends in calls."""
    turns: list[Message] = []
    for message in messages:
        is_repeat = bool(turns) and turns[-1].role == message.role and message.role in ("user", "assistant")
        if is_repeat and not turns[-1].tool_calls:
            turns[-1] = _joined(turns[-1], message)
        else:
            turns.append(message)
    return tuple(turns)


def _joined(first: Message, second: Message) -> Message:
    """``first`` with the content of ``second``, texts parted by a blank line."""
    gap = (TextPart("\n\n"),) if first.text and second.text else ()
    thoughts = [message.reasoning for message in (first, second) if message.reasoning]
    return replace(
        first,
        parts=(*first.parts, *gap, *second.parts),
        tool_calls=(*first.tool_calls, *second.tool_calls),
        reasoning="\n\n".join(thoughts) or None,
    )

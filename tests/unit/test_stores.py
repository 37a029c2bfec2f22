"""Caps, age, tenancy and the switched-off states of the in-memory stores."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.core.chat import MediaPart, Message, TextPart, ToolCall
from mlxcel.stores.lru import LruStore, StoreLimits
from mlxcel.stores.reasoning_echo import ReasoningEchoStore
from mlxcel.stores.responses import ConversationStore, ResponseStore, StoredResponse


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def store(max_entries: int = 3, max_bytes: int = 100, ttl_s: float = 10) -> tuple[LruStore[str, str], Clock]:
    clock = Clock()
    return LruStore(StoreLimits(max_entries, max_bytes, ttl_s), clock=clock), clock


class TestLruStore:
    def test_the_least_recently_used_entry_goes_first(self) -> None:
        kept, _ = store()
        for key in "abc":
            kept.put(key, key, 1)
        assert kept.get("a") == "a"
        kept.put("d", "d", 1)
        assert [kept.get(key) for key in "abcd"] == ["a", None, "c", "d"]

    def test_bytes_are_a_cap_of_their_own(self) -> None:
        kept, _ = store()
        kept.put("a", "a", 60)
        kept.put("b", "b", 60)
        assert kept.get("a") is None
        assert kept.total_bytes == 60

    def test_an_entry_over_the_cap_is_not_kept_and_evicts_nothing(self) -> None:
        kept, _ = store()
        kept.put("a", "a", 60)
        kept.put("b", "b", 101)
        assert kept.get("b") is None
        assert kept.get("a") == "a"

    def test_an_oversized_update_does_not_leave_the_old_value(self) -> None:
        kept, _ = store()
        kept.put("a", "old", 1)
        kept.put("a", "new", 101)
        assert kept.get("a") is None
        assert kept.total_bytes == 0

    def test_replacing_counts_the_new_size_only(self) -> None:
        kept, _ = store()
        kept.put("a", "old", 90)
        kept.put("a", "new", 20)
        assert (kept.get("a"), kept.total_bytes, len(kept)) == ("new", 20, 1)

    def test_entries_expire_by_their_last_write(self) -> None:
        kept, clock = store()
        kept.put("a", "a", 1)
        clock.now = 9.9
        assert kept.get("a") == "a"
        clock.now = 10.0
        assert kept.get("a") is None
        assert kept.total_bytes == 0

    def test_removing_an_expired_entry_reports_none(self) -> None:
        kept, clock = store()
        kept.put("a", "a", 1)
        clock.now = 11
        assert kept.remove("a") is False

    def test_ttl_zero_never_expires(self) -> None:
        kept, clock = store(ttl_s=0)
        kept.put("a", "a", 1)
        clock.now = 1e9
        assert kept.get("a") == "a"

    def test_zero_entries_switches_it_off_and_zero_bytes_does_not(self) -> None:
        off, _ = store(max_entries=0)
        tight, _ = store(max_bytes=0)
        for kept in (off, tight):
            kept.put("a", "a", 1)
            assert kept.get("a") is None
        assert (off.enabled, tight.enabled) == (False, True)

    @given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 60), st.sampled_from(["put", "get", "remove"]))))
    def test_it_behaves_like_a_plain_model(self, actions: list[tuple[str, int, str]]) -> None:
        kept, _ = store()
        model: OrderedDict[str, int] = OrderedDict()
        for key, size, action in actions:
            if action == "put":
                kept.put(key, str(size), size)
                model.pop(key, None)
                model[key] = size
                while len(model) > 3 or sum(model.values()) > 100:
                    model.popitem(last=False)
            elif action == "get":
                assert kept.get(key) == (str(model[key]) if key in model else None)
                if key in model:
                    model.move_to_end(key)
            else:
                assert kept.remove(key) is (model.pop(key, None) is not None)
            assert (len(kept), kept.total_bytes) == (len(model), sum(model.values()))


class TestResponseStore:
    def test_a_response_is_visible_to_its_own_scope_only(self) -> None:
        kept = ResponseStore(StoreLimits(4, 1000, 0))
        kept.put("alice", "resp_1", StoredResponse(b"{}", (b"1",)))
        assert kept.get("bob", "resp_1") is None
        assert kept.remove("bob", "resp_1") is False
        assert kept.get("alice", "resp_1") == StoredResponse(b"{}", (b"1",))

    def test_body_and_items_count_against_the_bytes(self) -> None:
        kept = ResponseStore(StoreLimits(4, 10, 0))
        kept.put("", "fits", StoredResponse(b"12345", (b"123", b"45")))
        kept.put("", "large", StoredResponse(b"12345", (b"123", b"456")))
        assert kept.get("", "fits") is not None
        assert kept.get("", "large") is None

    def test_output_items_are_found_by_id_in_their_scope(self) -> None:
        kept = ResponseStore(StoreLimits(4, 1000, 0))
        kept.put("alice", "resp_1", StoredResponse(b"{}", (b"in", b"first", b"second"), ("rs_1", "msg_1")))
        assert kept.output_item("alice", "rs_1") == b"first"
        assert kept.output_item("alice", "msg_1") == b"second"
        assert kept.output_item("alice", "in") is None
        assert kept.output_item("bob", "msg_1") is None


class TestConversationStore:
    def test_an_unknown_conversation_is_empty_and_scopes_do_not_meet(self) -> None:
        kept = ConversationStore(StoreLimits(4, 1000, 0))
        assert kept.items("alice", "conv") == ()
        kept.replace("alice", "conv", [b"1", b"2"])
        assert kept.items("alice", "conv") == (b"1", b"2")
        assert kept.items("bob", "conv") == ()


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def assistant(text: str, reasoning: str | None = None, calls: tuple[ToolCall, ...] = ()) -> Message:
    return Message("assistant", (TextPart(text),), reasoning=reasoning, tool_calls=calls)


class TestReasoningEcho:
    namespace = ("scope", "model", "template", "session")

    def recorded(self) -> ReasoningEchoStore:
        kept = ReasoningEchoStore()
        kept.record(self.namespace, [user("hi")], assistant("hello"), "they greet me")
        return kept

    def test_the_same_conversation_gets_its_reasoning_back(self) -> None:
        restored = self.recorded().restore(self.namespace, [user("hi"), assistant("hello"), user("more")])
        assert [message.reasoning for message in restored] == [None, "they greet me", None]

    def test_how_the_answer_is_split_into_parts_does_not_matter(self) -> None:
        answer = Message("assistant", (TextPart("hel"), TextPart("lo")))
        assert self.recorded().restore(self.namespace, [user("hi"), answer])[1].reasoning == "they greet me"

    @pytest.mark.parametrize(
        "messages",
        [
            [user("hi!"), assistant("hello")],
            [user("hi"), assistant("hello!")],
            [user("hi"), assistant("hello", calls=(ToolCall("c", "f", "{}"),))],
            [user("system"), user("hi"), assistant("hello")],
            [Message("user", (TextPart("hi"), MediaPart("image", "data:,x"))), assistant("hello")],
        ],
    )
    def test_any_difference_before_or_in_the_answer_finds_nothing(self, messages: list[Message]) -> None:
        assert all(message.reasoning is None for message in self.recorded().restore(self.namespace, messages))

    @pytest.mark.parametrize("position", range(4))
    def test_another_namespace_finds_nothing(self, position: int) -> None:
        other = [*self.namespace]
        other[position] += "x"
        assert self.recorded().restore(other, [user("hi"), assistant("hello")])[1].reasoning is None

    def test_what_the_client_sends_wins(self) -> None:
        restored = self.recorded().restore(self.namespace, [user("hi"), assistant("hello", reasoning="mine")])
        assert restored[1].reasoning == "mine"

    def test_a_second_turn_is_found_whether_or_not_the_first_thought_came_back(self) -> None:
        kept = self.recorded()
        first = [user("hi"), assistant("hello", reasoning="they greet me"), user("more")]
        kept.record(self.namespace, first, assistant("ok"), "they want more")
        bare = [user("hi"), assistant("hello"), user("more"), assistant("ok")]
        assert [message.reasoning for message in kept.restore(self.namespace, bare)] == [
            None,
            "they greet me",
            None,
            "they want more",
        ]

    def test_zero_bytes_is_off_and_one_entry_takes_at_most_an_eighth(self) -> None:
        off = ReasoningEchoStore(max_bytes=0)
        off.record(self.namespace, [user("hi")], assistant("hello"), "x")
        small = ReasoningEchoStore(max_bytes=800)
        small.record(self.namespace, [user("hi")], assistant("hello"), "x" * 100)
        for kept in (off, small):
            assert kept.restore(self.namespace, [user("hi"), assistant("hello")])[1].reasoning is None
        assert not off.enabled

    def test_text_cannot_be_moved_between_messages(self) -> None:
        rng = random.Random(7)
        text = "".join(rng.choice("ab:;1") for _ in range(40))
        kept = ReasoningEchoStore()
        kept.record(self.namespace, [user(text[:20])], assistant(text[20:]), "secret")
        for cut in (0, 10, 19, 21, 40):
            assert kept.restore(self.namespace, [user(text[:cut]), assistant(text[cut:])])[1].reasoning is None

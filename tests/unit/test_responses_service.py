"""Chains, conversations and running responses."""

from __future__ import annotations

import pytest

from mlxcel.core.errors import InvalidRequest, StoredNotFound
from mlxcel.services.responses import ResponsesService, Thread
from mlxcel.stores.lru import StoreLimits
from mlxcel.stores.responses import ConversationStore, ResponseStore

ROOMY = StoreLimits(16, 10_000, 0)
OFF = StoreLimits(0, 10_000, 0)


def service(responses: StoreLimits = ROOMY, conversations: StoreLimits = ROOMY) -> ResponsesService:
    return ResponsesService(ResponseStore(responses), ConversationStore(conversations))


def opened(
    kept: ResponsesService,
    response_id: str,
    *,
    previous: str | None = None,
    conversation: str | None = None,
    scope: str = "alice",
    stores: bool = True,
) -> Thread:
    return kept.open_thread(scope, response_id, previous_id=previous, conversation_id=conversation, stores=stores)


def keep(kept: ResponsesService, thread: Thread, *added: bytes, compacted: list[bytes] | None = None) -> None:
    kept.keep(thread, b"body", added=added, output_ids=[f"msg_{thread.response_id}"], compacted=compacted)


class Running:
    def __init__(self) -> None:
        self.cancels = 0

    def cancel(self) -> None:
        self.cancels += 1


class TestChains:
    def test_a_follow_up_gets_everything_before_it(self) -> None:
        kept = service()
        keep(kept, opened(kept, "r1"), b"in1", b"out1")
        keep(kept, opened(kept, "r2", previous="r1"), b"in2", b"out2")
        assert opened(kept, "r3", previous="r2").items == (b"in1", b"out1", b"in2", b"out2")
        assert opened(kept, "r3", previous="r1").items == (b"in1", b"out1")

    def test_a_compacted_chain_goes_on_from_less(self) -> None:
        kept = service()
        keep(kept, opened(kept, "r1"), b"in1", b"out1")
        keep(kept, opened(kept, "r2", previous="r1"), b"in2", b"cmp", b"out2", compacted=[b"sys", b"cmp", b"out2"])
        assert opened(kept, "r3", previous="r2").items == (b"sys", b"cmp", b"out2")

    def test_nothing_is_kept_without_store(self) -> None:
        kept = service()
        keep(kept, opened(kept, "r1", conversation="c", stores=False), b"in1", b"out1")
        with pytest.raises(InvalidRequest):
            opened(kept, "r2", previous="r1")
        assert opened(kept, "r2", conversation="c").items == ()

    def test_another_scope_has_none_of_it(self) -> None:
        kept = service()
        keep(kept, opened(kept, "r1", conversation="c"), b"in1", b"out1")
        with pytest.raises(InvalidRequest):
            opened(kept, "r2", previous="r1", scope="bob")
        assert opened(kept, "r2", conversation="c", scope="bob").items == ()
        assert kept.output_item("bob", "msg_r1") is None
        assert kept.output_item("alice", "msg_r1") == b"out1"


class TestConversations:
    def test_answers_that_overlap_both_stay(self) -> None:
        kept = service()
        first, second = opened(kept, "r1", conversation="c"), opened(kept, "r2", conversation="c")
        keep(kept, first, b"in1", b"out1")
        keep(kept, second, b"in2", b"out2")
        assert opened(kept, "r3", conversation="c").items == (b"in1", b"out1", b"in2", b"out2")

    def test_a_compaction_replaces_only_what_it_saw(self) -> None:
        kept = service()
        keep(kept, opened(kept, "r0", conversation="c"), b"in0", b"out0")
        first, second = opened(kept, "r1", conversation="c"), opened(kept, "r2", conversation="c")
        keep(kept, first, b"in1", b"out1")
        keep(kept, second, b"in2", b"cmp", b"out2", compacted=[b"cmp", b"out2"])
        assert opened(kept, "r3", conversation="c").items == (b"in0", b"out0", b"in1", b"out1", b"in2", b"cmp", b"out2")
        keep(kept, opened(kept, "r3", conversation="c"), b"in3", b"cmp3", compacted=[b"cmp3"])
        assert opened(kept, "r4", conversation="c").items == (b"cmp3",)


class TestRunning:
    def test_it_can_be_seen_and_cancelled_until_it_ends(self) -> None:
        kept, answer = service(), Running()
        thread = opened(kept, "r1")
        kept.started(thread, answer, b"running")
        assert kept.retrieve("alice", "r1") == b"running"
        with pytest.raises(StoredNotFound):
            kept.cancel("bob", "r1", lambda body: body)
        assert answer.cancels == 0
        assert kept.cancel("alice", "r1", lambda body: body + b" cancelled") == b"running cancelled"
        assert answer.cancels == 1
        kept.ended(thread)
        kept.ended(thread)
        with pytest.raises(StoredNotFound):
            kept.retrieve("alice", "r1")

    def test_the_finished_response_takes_its_place(self) -> None:
        kept = service()
        thread = opened(kept, "r1")
        kept.started(thread, Running(), b"running")
        keep(kept, thread, b"in", b"out")
        assert kept.retrieve("alice", "r1") == b"body"
        assert kept.cancel("alice", "r1", lambda body: b"marked") == b"marked"
        assert kept.retrieve("alice", "r1") == b"marked"
        assert opened(kept, "r2", previous="r1").items == (b"in", b"out")

    def test_without_store_it_is_not_shown(self) -> None:
        kept = service()
        kept.started(opened(kept, "r1", stores=False), Running(), b"running")
        with pytest.raises(StoredNotFound):
            kept.retrieve("alice", "r1")


class TestSwitchedOff:
    def test_responses(self) -> None:
        kept = service(responses=OFF)
        keep(kept, opened(kept, "r1", conversation="c"), b"in", b"out")
        for ask in (kept.retrieve, kept.delete, lambda scope, name: kept.cancel(scope, name, lambda body: body)):
            with pytest.raises(InvalidRequest):
                ask("alice", "r1")
        with pytest.raises(InvalidRequest):
            opened(kept, "r2", previous="r1")
        assert opened(kept, "r2", conversation="c").items == (b"in", b"out")

    def test_conversations(self) -> None:
        with pytest.raises(InvalidRequest):
            opened(service(conversations=OFF), "r1", conversation="c")

    def test_an_unknown_id_is_not_echoed_when_it_could_do_harm(self) -> None:
        with pytest.raises(StoredNotFound, match="Response with id '' not found"):
            service().retrieve("alice", "r\x1b[31m")

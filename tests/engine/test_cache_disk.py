"""The disk tier: what survives a restart, and what is done without."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from mlxcel.core.errors import StartupError
from mlxcel.core.work import CachePolicy
from mlxcel.engine.config import EngineConfig
from mlxcel.prefix_cache.disk import DiskTier
from mlxcel.prefix_cache.settings import CacheSettings
from mlxcel.testing.engine_bench import EngineBench, make_work, small_model, tokens_for

PROMPT = range(1000, 1100)
DIGEST = bytes(range(32))


def server(directory: Path, model: dict[str, Any] | None = None, **cache: Any) -> EngineBench:
    settings = CacheSettings(directory=directory, **cache)
    return EngineBench(info=small_model(**(model or {})), config=EngineConfig(cache=settings))


def ask(bench: EngineBench, id: str, prompt: range | list[int] = PROMPT, **fields: Any) -> int:
    bench.submit(make_work(id, prompt, 4, **fields))
    bench.finish()
    assert bench.tokens(id) == tokens_for(tuple(prompt))[:4]
    return bench.finished(id).usage.cached_tokens


def stop(bench: EngineBench) -> None:
    bench.engine.close()


def test_a_prefix_survives_a_restart(tmp_path: Path) -> None:
    first = server(tmp_path)
    assert ask(first, "cold") == 0
    stop(first)
    second = server(tmp_path)
    assert ask(second, "after") == 96
    stats = second.engine.cache_stats()
    assert (stats.hits, stats.disk_blocks, stats.disk_blocks_loaded, stats.disk_files_rejected) == (1, 6, 6, 0)
    assert ask(second, "again") == 96
    assert second.engine.cache_stats().disk_blocks_loaded == 6  # from memory now
    stop(second)


def test_a_block_is_written_once(tmp_path: Path) -> None:
    bench = server(tmp_path)
    ask(bench, "turn1")
    ask(bench, "turn1 again")
    ask(bench, "turn2", [*PROMPT, *range(50)])
    stop(bench)
    stats = bench.engine.cache_stats()
    assert stats.disk_blocks == 9
    assert stats.disk_bytes_written == stats.disk_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


@pytest.mark.parametrize("model", [{"fingerprint": "other weights"}, {"block_tokens": 8, "block_count": 4096}])
def test_another_model_finds_nothing(tmp_path: Path, model: dict[str, Any]) -> None:
    first = server(tmp_path)
    ask(first, "cold")
    stop(first)
    second = server(tmp_path, model)
    assert ask(second, "after") == 0
    stop(second)


def test_another_tenant_finds_nothing(tmp_path: Path) -> None:
    bench = server(tmp_path)
    ask(bench, "a", cache=CachePolicy(namespace="a"))
    stop(bench)
    bench = server(tmp_path)
    assert ask(bench, "b", cache=CachePolicy(namespace="b")) == 0
    assert ask(bench, "no reading", cache=CachePolicy(read=False, namespace="a")) == 0
    stop(bench)


def test_work_that_may_not_write_leaves_no_file(tmp_path: Path) -> None:
    bench = server(tmp_path)
    ask(bench, "silent", cache=CachePolicy(write=False))
    stop(bench)
    assert list(tmp_path.iterdir()) == []


def damage(path: Path, how: str) -> None:
    contents = bytearray(path.read_bytes())
    match how:
        case "flipped":
            contents[len(contents) // 2] ^= 1
        case "cut":
            del contents[-10:]
        case "empty":
            contents.clear()
        case "foreign":
            contents[:] = b"someone else's file"
        case "renamed":
            contents[:] = max(path.parent.iterdir()).read_bytes()
    path.write_bytes(contents)


@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "foreign", "renamed"])
def test_a_damaged_file_is_logged_and_done_without(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    first = server(tmp_path)
    ask(first, "cold")
    stop(first)
    victim = min(tmp_path.iterdir())
    damage(victim, how)
    second = server(tmp_path)
    assert ask(second, "after") < 96
    assert second.engine.cache_stats().disk_files_rejected == 1
    assert victim.name in caplog.text
    assert ask(second, "memory") == 96
    stop(second)
    third = server(tmp_path)
    assert ask(third, "whole again") == 96
    stop(third)


def test_foreign_files_are_left_alone_and_unfinished_ones_removed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / f"{DIGEST.hex()}.kv.tmp").write_bytes(b"half")
    (tmp_path / "other.tmp").write_bytes(b"not ours")
    tier = DiskTier(tmp_path, 1000)
    tier.close()
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "folder", "other.tmp"}


def test_the_byte_budget_holds_and_the_oldest_goes_first(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 1000)
    digests = [bytes([place]) * 32 for place in range(10)]
    for digest in digests:
        tier.save(digest, range(16), bytes(100))
        tier.flush()
        if digests[0] in tier:
            assert tier.load(digests[0], range(16)) == bytes(100)  # in use
    tier.close()
    assert tier.contents().bytes <= 1000
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == tier.contents().bytes
    assert [digest in tier for digest in digests] == [True, *[False] * 6, *[True] * 3]
    reopened = DiskTier(tmp_path, 300)
    reopened.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_is_logged_and_survived(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    def no_space(path: Any, target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", no_space)
    tier = DiskTier(tmp_path, 10_000)
    with caplog.at_level(logging.WARNING):
        tier.save(DIGEST, range(16), b"payload")
        tier.close()
    assert "No space left" in caplog.text
    assert list(tmp_path.iterdir()) == []
    assert tier.wants(DIGEST)


def test_files_are_private(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "cache", 10_000)
    tier.save(DIGEST, range(16), b"payload")
    tier.close()
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (tmp_path / "cache").iterdir())


def test_an_unusable_directory_is_a_startup_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="--prompt-cache-dir"):
        server(tmp_path / "file")


def test_reset_empties_the_disk_too(tmp_path: Path) -> None:
    bench = server(tmp_path)
    ask(bench, "cold")
    bench.engine.reset_cache()
    assert ask(bench, "after") == 0
    stop(bench)


def test_a_small_pool_loads_what_fits(tmp_path: Path) -> None:
    first = server(tmp_path)
    ask(first, "long", range(1000, 1400))
    stop(first)
    second = server(tmp_path, {"block_count": 30}, capacity_bytes=10 * 16 * 64)
    assert ask(second, "long", range(1000, 1400)) == 160
    second.engine.check()
    stop(second)

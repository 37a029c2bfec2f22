"""Stored blocks on disk: one file a block, named by its chain digest, so that prefixes survive a restart.

The digest covers model, KV mode, namespace and all tokens up to the block; a file that belongs to anything else is never
found. A block is written once, by a thread of its own, to a temporary name and then renamed; its checksum is verified when
it is read. What cannot be read is logged and done without.

File layout (little-endian): magic, digest (32 bytes), token count (u32), token ids (u32 each), payload, SHA-256 of it all.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from mlxcel.prefix_cache.keys import token_bytes
from mlxcel.prefix_cache.stats import DiskContents

log = logging.getLogger(__name__)

_MAGIC = b"MLXCELKV\x01\x00\x00\x00"
_NAME = re.compile(r"[0-9a-f]{64}\.kv")
_TEMPORARY = ".tmp"
_DIGEST_BYTES = 32
_QUEUED_BYTES = 256 * 1024 * 1024  # blocks waiting for the writer; what comes beyond is not kept


class DiskTier:
    """Blocks in one directory, least recently used ones given up beyond a byte budget.

    The methods belong to the owner thread; only the writing happens elsewhere.

    Args:
        directory: made if needed, readable by this user only.
        capacity_bytes: file bytes kept.

    Raises:
        OSError: the directory cannot be made or read.
    """

    def __init__(self, directory: Path, capacity_bytes: int) -> None:
        self._blocks_loaded = 0
        self._bytes_written = 0
        self._files_rejected = 0
        self._directory = directory
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._sizes: OrderedDict[bytes, int] = OrderedDict()  # guarded by _lock; least recently used first
        self._bytes = 0  # guarded by _lock
        self._queued: set[bytes] = set()  # guarded by _lock
        self._queued_bytes = 0  # guarded by _lock
        self._queue: queue.SimpleQueue[tuple[bytes, bytes] | threading.Event | None] = queue.SimpleQueue()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._scan()
        self._writer = threading.Thread(target=self._write_queued, name="mlxcel-cache-disk", daemon=True)
        self._writer.start()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._sizes

    def contents(self) -> DiskContents:
        """What is there and what was done. Safe to call from any thread."""
        return DiskContents(len(self._sizes), self._bytes, self._blocks_loaded, self._bytes_written, self._files_rejected)

    def wants(self, digest: bytes) -> bool:
        """True when a block is neither stored nor on its way."""
        with self._lock:
            return digest not in self._sizes and digest not in self._queued and self._queued_bytes < _QUEUED_BYTES

    def save(self, digest: bytes, token_ids: Sequence[int], payload: bytes) -> None:
        """Store a block soon."""
        words = token_bytes(token_ids)
        body = b"".join((_MAGIC, digest, len(token_ids).to_bytes(4, "little"), words, payload))
        contents = body + sha256(body).digest()
        with self._lock:
            self._queued.add(digest)
            self._queued_bytes += len(contents)
        self._queue.put((digest, contents))

    def load(self, digest: bytes, token_ids: Sequence[int]) -> bytes | None:
        """The payload stored for exactly these tokens; None, and the file forgotten, when it cannot be trusted."""
        path = self._path(digest)
        try:
            contents = path.read_bytes()
        except OSError as error:
            self._reject(digest, f"cannot be read ({error.strerror})")
            return None
        head = _MAGIC + digest + len(token_ids).to_bytes(4, "little") + token_bytes(token_ids)
        if not contents.startswith(_MAGIC):
            self._reject(digest, "is not a prompt cache file of this version")
            return None
        if sha256(contents[:-_DIGEST_BYTES]).digest() != contents[-_DIGEST_BYTES:] or not contents.startswith(head):
            self._reject(digest, "is damaged; it was removed")
            path.unlink(missing_ok=True)
            return None
        with self._lock:
            if digest in self._sizes:
                self._sizes.move_to_end(digest)
        _touch(path)
        self._blocks_loaded += 1
        return contents[len(head) : -_DIGEST_BYTES]

    def clear(self) -> None:
        """Remove every block."""
        self.flush()
        with self._lock:
            digests = list(self._sizes)
            self._sizes.clear()
            self._bytes = 0
        for digest in digests:
            self._path(digest).unlink(missing_ok=True)

    def flush(self) -> None:
        """Wait until everything queued is written."""
        done = threading.Event()
        self._queue.put(done)
        while self._writer.is_alive() and not done.wait(0.1):
            pass

    def close(self) -> None:
        """Write what is queued and stop."""
        self._queue.put(None)
        self._writer.join()

    def _path(self, digest: bytes) -> Path:
        return self._directory / f"{digest.hex()}.kv"

    def _scan(self) -> None:
        """Take stock of what an earlier process left: oldest first, unfinished files removed, foreign ones left alone."""
        found: list[tuple[float, bytes, int]] = []
        for entry in os.scandir(self._directory):
            if not entry.is_file(follow_symlinks=False):
                continue
            if entry.name.endswith(_TEMPORARY) and _NAME.fullmatch(entry.name.removesuffix(_TEMPORARY)):
                Path(entry.path).unlink(missing_ok=True)
            elif _NAME.fullmatch(entry.name):
                status = entry.stat(follow_symlinks=False)
                found.append((status.st_mtime, bytes.fromhex(entry.name.removesuffix(".kv")), status.st_size))
        for _, digest, size in sorted(found):
            self._sizes[digest] = size
            self._bytes += size
        self._give_up_oldest()

    def _reject(self, digest: bytes, why: str) -> None:
        self._files_rejected += 1
        with self._lock:
            self._bytes -= self._sizes.pop(digest, 0)
        log.warning("prompt cache file %s %s", self._path(digest).name, why)

    # ---- writer thread --------------------------------------------------------------------------------------------

    def _write_queued(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            if isinstance(item, threading.Event):
                item.set()
                continue
            digest, contents = item
            try:
                self._write(digest, contents)
            except OSError as error:
                log.warning("a prompt cache file could not be written (%s)", error.strerror)
            finally:
                with self._lock:
                    self._queued.discard(digest)
                    self._queued_bytes -= len(contents)

    def _write(self, digest: bytes, contents: bytes) -> None:
        if len(contents) > self._capacity_bytes:
            return
        path = self._path(digest)
        temporary = path.with_name(path.name + _TEMPORARY)
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(contents)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self._bytes_written += len(contents)
        with self._lock:
            self._bytes += len(contents) - self._sizes.pop(digest, 0)
            self._sizes[digest] = len(contents)
        self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        while True:
            with self._lock:
                if self._bytes <= self._capacity_bytes or not self._sizes:
                    return
                digest, size = self._sizes.popitem(last=False)
                self._bytes -= size
            self._path(digest).unlink(missing_ok=True)


def _touch(path: Path) -> None:
    """Remember the use over a restart."""
    try:
        os.utime(path)
    except OSError:
        log.debug("the time of a prompt cache file could not be set")

"""Token streams of slots as files in one directory: small, written whole or not at all, and good for one model only."""

from __future__ import annotations

import array
import json
import os
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlxcel.core.errors import GenerationFailed, InvalidRequest, StartupError
from mlxcel.core.work import SlotRecord

_MAGIC = "mlxcel-slot-1"
_MAX_NAME_BYTES = 255
_MAX_HEADER_BYTES = 64 * 1024
# A link could lead out of the directory, and a pipe would block.
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_FORBIDDEN = frozenset(':*?"<>|/\\\uff0e\u2215\u2216\ufffd\ufeff')


class SlotFiles:
    """Saves and loads slot records.

    Args:
        directory: must exist; nothing outside of it is ever touched.

    Raises:
        StartupError: it is not a directory.
    """

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise StartupError(f"--slot-save-path: {directory} is not a directory")
        self._directory = directory

    def save(self, name: str, record: SlotRecord, owner: str) -> int:
        """Write a record and return the bytes of its file.

        Args:
            owner: digest of the model and the tokenizer; only they can load it again.

        Raises:
            InvalidRequest: see :func:`check_name`.
            GenerationFailed: the file cannot be written.
        """
        check_name(name)
        header = {"format": _MAGIC, "owner": owner, "namespace": record.namespace, "adapters": record.adapters}
        data = json.dumps(header).encode() + b"\n" + _int32_bytes(record.token_ids)
        try:
            handle, temporary = tempfile.mkstemp(dir=self._directory, prefix=".slot-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                Path(temporary).replace(self._directory / name)
            except BaseException:
                with suppress(OSError):
                    Path(temporary).unlink()
                raise
        except OSError as error:
            raise GenerationFailed(f"the slot could not be saved: {error.strerror}") from error
        return len(data)

    def load(self, name: str, owner: str, max_tokens: int) -> tuple[SlotRecord, int]:
        """A record and the bytes of its file.

        Raises:
            InvalidRequest: see :func:`check_name`; also for a file that is missing, damaged, of another owner or longer than
                ``max_tokens``.
        """
        check_name(name)
        data = self._read(name, _MAX_HEADER_BYTES + 4 * max_tokens)
        head, newline, body = data.partition(b"\n")
        try:
            header: dict[str, Any] = json.loads(head) if newline else {}
            adapters = tuple((int(number), float(scale)) for number, scale in header["adapters"])
            known = (header["format"], header["owner"], str(header["namespace"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InvalidRequest("'filename': the file is no saved slot", param="filename") from None
        if known[:2] != (_MAGIC, owner):
            raise InvalidRequest("'filename': the slot was saved with another model", param="filename")
        if not body or len(body) % 4 or len(body) // 4 > max_tokens:
            raise InvalidRequest("'filename': the saved slot is damaged or larger than the context window", param="filename")
        return SlotRecord(_from_int32_bytes(body), known[2], adapters), len(data)

    def _read(self, name: str, max_bytes: int) -> bytes:
        missing = InvalidRequest("'filename': there is no such saved slot", param="filename")
        try:
            handle = os.open(self._directory / name, _READ_FLAGS)
        except OSError:
            raise missing from None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise missing
        with os.fdopen(handle, "rb") as file:
            return file.read(max_bytes + 1)


def check_name(name: str) -> None:
    """llama.cpp's rules for file names, without folders.

    Raises:
        InvalidRequest: empty, too long, with separators, control characters, ``..`` or look-alikes of them, or with a
            space or dot where some file systems drop it.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:  # a lone surrogate
        size = _MAX_NAME_BYTES + 1
    bad = not 0 < size <= _MAX_NAME_BYTES or ".." in name or name[0] == " " or name[-1] in " ."
    if bad or any(char in _FORBIDDEN or char <= "\x1f" or "\x7f" <= char <= "\x9f" for char in name):
        raise InvalidRequest("Invalid filename", param="filename")


def _int32_bytes(token_ids: tuple[int, ...]) -> bytes:
    values = array.array("i", token_ids)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _from_int32_bytes(data: bytes) -> tuple[int, ...]:
    values = array.array("i", data)
    if sys.byteorder == "big":
        values.byteswap()
    return tuple(values)

"""The process log: levels as llama-server numbers them, secrets redacted, control characters neutralised."""

from __future__ import annotations

import logging
import os
import re
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from mlxcel.core.errors import StartupError

_LEVELS = {0: logging.ERROR, 1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO}
_COLORS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[31m"}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FORMAT = "%(asctime)s.%(msecs)03d %(levelname).1s %(name)s: %(message)s"
REDACTED = "[redacted]"


def configure_logging(
    *, verbosity: int, disabled: bool = False, file: str = "", colors: str = "auto", secrets: Sequence[str] = ()
) -> None:
    """Set up the ``mlxcel`` loggers of the process; those of libraries only speak from warnings up.

    Args:
        verbosity: 0-1 errors, 2 warnings, 3 info, 4 and above debug.
        file: also write there, created with mode 0600; a symlink is refused.
        colors: "auto" colours a terminal only.
        secrets: texts that are replaced wherever they appear.

    Raises:
        StartupError: the log file cannot be written.
    """
    level = logging.CRITICAL + 1 if disabled else _LEVELS.get(verbosity, logging.DEBUG)
    screen = logging.StreamHandler(sys.stderr)
    use_colors = colors == "on" or (colors == "auto" and sys.stderr.isatty())
    screen.setFormatter(SafeFormatter(secrets, use_colors=use_colors))
    handlers: list[logging.Handler] = [screen]
    if file:
        to_file = logging.StreamHandler(_open_private(Path(file)))
        to_file.setFormatter(SafeFormatter(secrets))
        handlers.append(to_file)
    root = logging.getLogger()
    root.handlers[:] = handlers
    root.setLevel(max(level, logging.WARNING))
    logging.getLogger("mlxcel").setLevel(level)


class SafeFormatter(logging.Formatter):
    """One line a record (tracebacks follow), without secrets and without characters that drive a terminal."""

    def __init__(self, secrets: Sequence[str] = (), *, use_colors: bool = False) -> None:
        super().__init__(_FORMAT, datefmt="%H:%M:%S")
        self._secrets = sorted((secret for secret in secrets if secret), key=len, reverse=True)
        self._use_colors = use_colors

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        text = _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)
        color = _COLORS.get(record.levelno, "") if self._use_colors else ""
        return f"{color}{text}\x1b[0m" if color else text

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = record.message.replace("\r", "\\r").replace("\n", "\\n")  # one record cannot fake another
        return super().formatMessage(record)


def _open_private(path: Path) -> TextIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags, 0o600)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise StartupError(f"--log-file: {path} is not a regular file")
        os.fchmod(descriptor, 0o600)
    except OSError as error:
        raise StartupError(f"--log-file: cannot write {path}: {error.strerror}") from None
    return os.fdopen(descriptor, "a", encoding="utf-8")

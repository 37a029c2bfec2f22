"""Compiling a stranger's grammar for the first time, where it can do no harm.

The grammar compiler has limits for most things, but small schemas still exist that keep it busy for minutes
(``{"multipleOf": 99999999}``) or overflow its stack, and neither can be stopped inside a process. So each new grammar is
compiled once in a small child process, which is killed when it takes too long and may die without consequence.

The child reads JSON strings, one a line, and answers each with the compiler's message (empty when all is well). It ends when
its input does.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import IO

import llguidance

from mlxcel.core.errors import TimedOut

MAX_GRAMMAR_SIZE = 100_000
MAX_LEXER_STATES = 50_000
TOO_COMPLEX = "the grammar is too complex"
_CHILD_MEMORY_BYTES = 4 * 1024**3
_CHILD_STACK_BYTES = 4 * 1024**2  # half of what the server's own threads have
_CHILD_ALARM_S = 60
_MAX_WAIT_S = 30.0


def parser_limits() -> llguidance.LLParserLimits:
    """The limits under which every grammar is compiled and followed."""
    return llguidance.LLParserLimits(
        max_grammar_size=MAX_GRAMMAR_SIZE, max_lexer_states=MAX_LEXER_STATES, verbose_errors=False
    )


class GrammarTrial:
    """Tries grammars in a child process that is started when first needed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[[subprocess.Popen[bytes]], GrammarTrial] | None = None

    def complaint(self, grammar: str, deadline_s: float) -> str:
        """What is wrong with ``grammar``: empty when it compiles within ``deadline_s``, else the compiler's message.

        Raises:
            TimedOut: too many other grammars were waiting.
        """
        if not self._lock.acquire(timeout=_MAX_WAIT_S):
            raise TimedOut("too many schemas are being compiled; try again later")
        try:
            child = self._running_child()
            answer = _ask(child, grammar, time.monotonic() + deadline_s)
            if answer is None:
                self._discard()
                return TOO_COMPLEX
            return answer
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the child. A later trial starts a new one."""
        with self._lock:
            self._discard()

    def _running_child(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._discard()
            self._child = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            self._finalizer = weakref.finalize(self, _stop, self._child)
        return self._child

    def _discard(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._child = self._finalizer = None


def _ask(child: subprocess.Popen[bytes], grammar: str, deadline: float) -> str | None:
    """The child's answer; None when it died or did not answer in time."""
    if child.stdin is None or child.stdout is None:
        return None
    try:
        child.stdin.write(json.dumps(grammar).encode() + b"\n")
        child.stdin.flush()
        line = _read_line(child.stdout, deadline)
    except OSError:  # the child died while it was written to
        return None
    return str(json.loads(line)) if line else None


def _read_line(stream: IO[bytes], deadline: float) -> bytes:
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return stream.readline() if selector.select(max(0.0, deadline - time.monotonic())) else b""


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            try:
                stream.close()
            except OSError:  # unsent bytes of a child that is gone
                continue


# ---- the child --------------------------------------------------------------------------------------------------------


def _compile(grammar: str, vocabulary: llguidance.LLTokenizer) -> str:
    """The compiler's complaint, or what the first step finds wrong."""
    matcher = llguidance.LLMatcher(vocabulary, grammar, log_level=0, limits=parser_limits())
    if not matcher.is_error():
        matcher.compute_bitmask()  # a grammar that admits nothing shows itself here
    return str(matcher.get_error()) if matcher.is_error() else ""


def _serve() -> None:
    import resource
    import signal

    resource.setrlimit(resource.RLIMIT_AS, (_CHILD_MEMORY_BYTES, _CHILD_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(_CHILD_STACK_BYTES)
    vocabulary = llguidance.LLTokenizer("byte")
    for line in sys.stdin.buffer:
        signal.alarm(_CHILD_ALARM_S)  # in case the parent is no longer there to kill
        with ThreadPoolExecutor(1) as worker:  # the main thread's stack would be the large one
            answer = worker.submit(_compile, json.loads(line), vocabulary).result()
        signal.alarm(0)
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()

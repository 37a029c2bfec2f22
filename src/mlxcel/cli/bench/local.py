"""A server of our own for the time of a measurement."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from types import TracebackType
from typing import Self

from mlxcel.cli.bench.ports import free_port
from mlxcel.core.errors import StartupError

_READY_TIMEOUT_S = 300


class LocalServer:
    """Starts ``mlxcel serve`` as a child process; entering waits until it is ready and gives its URL."""

    def __init__(self, model: str, *, slots: int, threads: int = 0) -> None:
        self._port = free_port()
        self._command = [
            sys.executable, "-m", "mlxcel.cli.main", "serve", "-m", model, "--port", str(self._port), "--log-disable",
            "--parallel", str(slots), "--kv-unified", "--threads", str(threads),
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> str:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # noqa: S603
        url = f"http://127.0.0.1:{self._port}"
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                _, errors = self._process.communicate()
                raise StartupError(f"the server did not start: {errors.decode('utf-8', 'replace').strip()[-400:]}")
            try:
                with urllib.request.urlopen(url + "/health", timeout=5):  # noqa: S310
                    return url
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        self.stop()
        raise StartupError("the server did not become ready")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> Self:
        """End the server."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self

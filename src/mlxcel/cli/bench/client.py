"""A small HTTP client for load tests: one connection a request, timestamps as the bytes arrive, little work per token."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from mlxcel.core.errors import StartupError


@dataclass(slots=True)
class Sample:
    """One request as the client saw it.

    Attributes:
        started_s: when the request was sent (monotonic).
        chunk_times_s: when each non-empty piece of text arrived.
        ended_s: when the answer was complete.
        prompt_tokens, completion_tokens: as the server counted them in ``usage``.
        cached_tokens: of the prompt, from the server's cache.
        error: status and start of the body of a refused request.
    """

    started_s: float
    chunk_times_s: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        """Seconds to the first text."""
        return self.chunk_times_s[0] - self.started_s if self.chunk_times_s else self.ended_s - self.started_s


class BenchClient:
    """Talks to ``base_url`` (``http://host:port``).

    Raises:
        StartupError: the URL is not http or https.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None, model: str | None = None) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StartupError(f"--url: {base_url!r} is not an http URL")
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._key = api_key
        self.model = model

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """A whole answer: status and body."""
        reader, writer = await self._send("POST", path, body)
        try:
            status, headers = await _read_head(reader)
            return status, b"".join([chunk async for chunk in _body(reader, headers)])
        finally:
            writer.close()

    async def get(self, path: str) -> tuple[int, bytes]:
        """A whole answer to GET."""
        reader, writer = await self._send("GET", path, None)
        try:
            status, headers = await _read_head(reader)
            return status, b"".join([chunk async for chunk in _body(reader, headers)])
        finally:
            writer.close()

    async def complete(self, prompt: str, *, new_tokens: int) -> Sample:
        """Stream exactly ``new_tokens`` greedy tokens after ``prompt``."""
        body: dict[str, Any] = {
            "model": self.model or "bench",
            "prompt": prompt,
            "max_tokens": new_tokens,
            "min_tokens": new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_prompt": False,
        }
        sample = Sample(time.perf_counter())
        reader, writer = await self._send("POST", "/v1/completions", body)
        try:
            status, headers = await _read_head(reader)
            if status != 200:
                text = b"".join([chunk async for chunk in _body(reader, headers)])
                sample.error = f"{status}: {text[:200].decode('utf-8', 'replace')}"
                sample.ended_s = time.perf_counter()
                return sample
            await _read_events(reader, headers, sample)
        finally:
            writer.close()
        return sample

    async def _send(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=2**20)
        except OSError as error:
            raise StartupError(f"cannot connect to {self._host} port {self._port}: {error.strerror or error}") from None
        payload = b"" if body is None else json.dumps(body).encode()
        key = f"Authorization: Bearer {self._key}\r\n" if self._key else ""
        head = (
            f"{method} {self._prefix}{path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nConnection: close\r\n{key}"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        writer.write(head.encode() + payload)
        await writer.drain()
        return reader, writer


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
    return int(lines[0].split()[1]), headers


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    """The body in pieces, as they arrive."""
    if headers.get("transfer-encoding") == "chunked":
        while size := int((await reader.readline()).split(b";")[0], 16):
            yield await reader.readexactly(size)
            await reader.readline()
        return
    while piece := await reader.read(65536):
        yield piece


async def _read_events(reader: asyncio.StreamReader, headers: dict[str, str], sample: Sample) -> None:
    pending = b""
    async for piece in _body(reader, headers):
        now_s = time.perf_counter()
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage")
            if usage:
                sample.prompt_tokens = usage["prompt_tokens"]
                sample.completion_tokens = usage["completion_tokens"]
                sample.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            if any(choice.get("text") for choice in event.get("choices", ())):
                sample.chunk_times_s.append(now_s)
    sample.ended_s = time.perf_counter()

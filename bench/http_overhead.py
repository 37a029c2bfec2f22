"""What HTTP, services and the engine cost around a model that costs nothing.

A scripted model takes a fixed time for each step, so the rest of a request's time is overhead, and the CPU time of the
server process divided by the streamed tokens is the overhead of a token. Run: ``python bench/http_overhead.py [--json]``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2
import psutil

STREAMS = 32
TOKENS = 200
REQUESTS = 300
STEP_S = 0.02  # of the scripted model while it streams; a real model is no faster


def serve(folder: str) -> None:
    """The measured process."""
    from mlxcel.app import build_app
    from mlxcel.config.scheduling import SchedulingConfig
    from mlxcel.config.server import ServerConfig
    from mlxcel.http.server import QuietServer, uvicorn_config
    from mlxcel.testing.app import scripted_source

    words = " ".join(["word"] * 4 * TOKENS)
    source = scripted_source(words, Path(folder), step_s=STEP_S)
    app = build_app(ServerConfig(scheduling=SchedulingConfig(parallel=STREAMS)), source)
    server = QuietServer(uvicorn_config(app.asgi, timeout_s=75))
    server.config.port = int(os.environ["BENCH_PORT"])
    server.run()


async def measure(url: str, process: psutil.Process) -> dict[str, Any]:
    """The figures of one run."""
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
        for _ in range(50):
            await client.post("/v1/chat/completions", json=chat)
        times_ms = []
        for _ in range(REQUESTS):
            started_s = time.perf_counter()
            (await client.post("/v1/chat/completions", json=chat)).raise_for_status()
            times_ms.append((time.perf_counter() - started_s) * 1000)
        before_s = sum(process.cpu_times()[:2])
        started_s = time.perf_counter()
        await asyncio.gather(*(stream(url) for _ in range(STREAMS)))
        wall_s = time.perf_counter() - started_s
        cpu_s = sum(process.cpu_times()[:2]) - before_s
    tokens = STREAMS * TOKENS
    return {
        "requests": REQUESTS,
        "request_overhead_p50_ms": round(statistics.median(times_ms) - STEP_S * 1000, 3),
        "request_overhead_p99_ms": round(sorted(times_ms)[int(REQUESTS * 0.99)] - STEP_S * 1000, 3),
        "streams": STREAMS,
        "streamed_tokens": tokens,
        "server_cpu_us_per_token": round(cpu_s / tokens * 1e6, 1),
        "tokens_per_s": round(tokens / wall_s),
    }


async def stream(url: str) -> None:
    """Read one stream to its end, doing as little as possible."""
    port = int(url.rpartition(":")[2])
    body = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": TOKENS, "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    received = 0
    while piece := await reader.read(65536):
        received += piece.count(b'"content"')
    writer.close()
    if received < TOKENS * 0.9:
        raise RuntimeError(f"a stream brought {received} pieces")


def main() -> None:
    """Start the server, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    port = 8199
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen([sys.executable, __file__, "--serve", folder], env=os.environ | {"BENCH_PORT": str(port)})
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(600):
                try:
                    if httpx2.get(url + "/health").status_code == 200:
                        break
                except httpx2.TransportError:
                    time.sleep(0.05)
            figures = asyncio.run(measure(url, psutil.Process(child.pid)))
        finally:
            child.terminate()
            child.wait(20)
    print(
        json.dumps(figures, indent=2) if options.json else "\n".join(f"{key:<24} {value}" for key, value in figures.items())
    )


if __name__ == "__main__":
    main()

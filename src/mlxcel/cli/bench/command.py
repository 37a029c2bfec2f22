"""The command: options, a table, or JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from mlxcel.cli.bench.client import BenchClient
from mlxcel.cli.bench.embeddings import EmbeddingReport, measure_embeddings
from mlxcel.cli.bench.local import LocalServer
from mlxcel.cli.bench.scenarios import Bench, Report


def run(arguments: Sequence[str]) -> int:
    """``mlxcel bench``."""
    parser = argparse.ArgumentParser(prog="mlxcel bench", description="Measure a server: prefill, decode, latency.")
    parser.add_argument("--url", help="an OpenAI-compatible server, such as http://127.0.0.1:8080")
    parser.add_argument("-m", "--model", help="serve this checkpoint for the measurement (when there is no --url)")
    parser.add_argument("--model-name", help="model name sent to the server")
    parser.add_argument("--api-key", help="key sent to the server")
    parser.add_argument("--prefill", default="512,2048", metavar="N,N", help="prompt lengths in tokens (default: 512,2048)")
    parser.add_argument("--streams", default="1,4,16,32", metavar="N,N", help="concurrent streams (default: 1,4,16,32)")
    parser.add_argument("--new-tokens", type=int, default=128, metavar="N", help="tokens of each stream (default: 128)")
    parser.add_argument("--repeats", type=int, default=2, metavar="N", help="runs of each scenario; the best counts")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="threads of the measured server (with -m)")
    parser.add_argument("--embeddings", action="store_true", help="measure embeddings instead of generation")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the JSON here")
    options = parser.parse_args(list(arguments))
    if bool(options.url) == bool(options.model):
        parser.error("give either --url or --model")
    if options.url:
        report = asyncio.run(_measure(options, options.url))
    else:
        streams = max(_numbers(options.streams))
        with LocalServer(options.model, slots=streams, threads=options.threads) as url:
            report = asyncio.run(_measure(options, url))
    text = json.dumps(report.as_json(), indent=2)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
    print(text if options.json else table(report) if isinstance(report, Report) else report.table())
    return 0


async def _measure(options: argparse.Namespace, url: str) -> Report | EmbeddingReport:
    client = BenchClient(url, api_key=options.api_key, model=options.model_name)
    if client.model is None:
        status, body = await client.get("/v1/models")
        client.model = json.loads(body)["data"][0]["id"] if status == 200 else "default"
    if options.embeddings:
        return EmbeddingReport(url, client.model or "", await measure_embeddings(client, options.repeats))
    bench = Bench(client, progress=lambda line: print(f"… {line}", file=sys.stderr, flush=True))
    await bench.calibrate()
    prefill = [await bench.prefill(tokens, options.repeats) for tokens in _numbers(options.prefill)]
    decode = [
        await bench.decode(streams, new_tokens=options.new_tokens, repeats=options.repeats)
        for streams in _numbers(options.streams)
    ]
    return Report(url, client.model or "", tuple(prefill), tuple(decode))


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.strip()]


def table(report: Report) -> str:
    """The report for a terminal."""
    lines = [f"{report.model} at {report.server}", "", "prefill        tok/s    TTFT"]
    lines += [f"{row.prompt_tokens:>7} tok {row.tokens_per_s:>9.0f} {row.ttft_s * 1000:>7.0f} ms" for row in report.prefill]
    lines += ["", "streams   tok/s   inter-token p50 / p99   TTFT p50"]
    for row in report.decode:
        gaps = f"{row.inter_token_p50_s * 1000:>11.1f} / {row.inter_token_p99_s * 1000:.1f} ms"
        lines.append(f"{row.streams:>7} {row.tokens_per_s:>7.0f} {gaps} {row.ttft_p50_s * 1000:>9.0f} ms")
    return "\n".join(lines)

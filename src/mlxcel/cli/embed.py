"""``mlxcel embed``: vectors of texts in the terminal, and how similar they are."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlxcel.cli.vectors import add_model_options, server_config
from mlxcel.core.chat import MediaPart, TextPart
from mlxcel.core.errors import MlxcelError, StartupError
from mlxcel.core.vectors import Embeddings, EmbedInput, EmbedJob

Floats = NDArray[np.float32]


def run(arguments: Sequence[str]) -> int:
    """Embed the given texts; returns the exit code."""
    options = _parse(arguments)
    inputs: list[EmbedInput] = [TextPart(text) for text in options.prompts]
    inputs += [MediaPart("image", str(path)) for path in options.images]
    if not inputs:
        raise StartupError("nothing to embed; give a text with -p")
    job = EmbedJob(tuple(inputs), options.instruction, options.dimensions)
    result = asyncio.run(_embed(options, job))
    vectors = [np.frombuffer(vector.data, dtype="<f4").reshape(vector.shape) for vector in result.vectors]
    similarity = [[_similarity(left, right) for right in vectors] for left in vectors]
    if options.json:
        report = {
            "embeddings": [vector.tolist() for vector in vectors],
            "shapes": [list(vector.shape) for vector in vectors],
            "prompt_tokens": result.prompt_tokens,
            "similarity": similarity,
        }
        print(json.dumps(report))
        return 0
    for vector in vectors:
        print("[" + ", ".join(f"{value:.6f}" for value in vector.flatten()) + "]")
    print("\nMaxSim similarity" if vectors[0].ndim > 1 else "\ncosine similarity")
    for row in similarity:
        print(" ".join(f"{value:8.4f}" for value in row))
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mlxcel embed", description="Turn texts into vectors and compare them.")
    parser.add_argument("-p", "--prompt", dest="prompts", action="append", default=[], metavar="TEXT", help="repeatable")
    parser.add_argument("--image", dest="images", action="append", default=[], type=Path, metavar="FILE", help="an image")
    parser.add_argument("--dimensions", type=int, metavar="N", help="keep the first N components")
    add_model_options(parser, "embedding")
    return parser.parse_args(list(arguments))


async def _embed(options: argparse.Namespace, job: EmbedJob) -> Embeddings:
    from mlxcel.app import build_app, open_models

    config = server_config(options, embeddings_only=True)
    app = build_app(config, open_models(config))
    async with app.asgi.router.lifespan_context(app.asgi):
        await app.wait_ready()
        try:
            return await app.rooms.embeddings.embed(job)
        except MlxcelError as error:
            raise StartupError(error.message) from None


def _similarity(left: Floats, right: Floats) -> float:
    """Cosine of two vectors; of two matrices the sum over the left rows of their best product (MaxSim)."""
    if left.ndim > 1:
        return float((left @ right.T).max(1).sum())
    lengths = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / lengths if lengths > 0 else 0.0

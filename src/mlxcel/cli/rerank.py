"""``mlxcel rerank``: documents by relevance in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from mlxcel.cli.vectors import add_model_options, server_config
from mlxcel.core.chat import MediaPart
from mlxcel.core.errors import MlxcelError, StartupError
from mlxcel.core.vectors import Ranking, RankItem, RerankJob


def run(arguments: Sequence[str]) -> int:
    """Rank the given documents; returns the exit code."""
    options = _parse(arguments)
    documents = [RankItem(text) for text in options.documents] + [RankItem(image=_image(path)) for path in options.images]
    if not documents:
        raise StartupError("nothing to rank; give a document with -d")
    query = RankItem(options.query, None if options.query_image is None else _image(options.query_image))
    job = RerankJob(query, tuple(documents), None, options.instruction)
    ranking, kind = asyncio.run(_rank(options, job))
    best = ranking.results[: options.top_n]
    if options.json:
        scores = {ranked.index: ranked.score for ranked in ranking.results}
        report = {
            "scores": [scores[index] for index in range(len(documents))],
            "ranking": [ranked.index for ranked in best],
            "kind": kind,
            "prompt_tokens": ranking.prompt_tokens,
        }
        print(json.dumps(report))
        return 0
    for place, ranked in enumerate(best, start=1):
        item = documents[ranked.index]
        print(f"{place:>3}  {ranked.score:.6f}  [{ranked.index}] {item.text if item.image is None else item.image.url}")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mlxcel rerank", description="Order documents by their relevance to a query.")
    parser.add_argument("-q", "--query", metavar="TEXT", help="what is looked for")
    parser.add_argument("--query-image", type=Path, metavar="FILE", help="an image to look for")
    parser.add_argument("-d", "--document", dest="documents", action="append", default=[], metavar="TEXT", help="repeatable")
    parser.add_argument("--image", dest="images", action="append", default=[], type=Path, metavar="FILE", help="an image")
    parser.add_argument("--top-n", type=int, metavar="N", help="show the best N")
    add_model_options(parser, "reranking")
    return parser.parse_args(list(arguments))


async def _rank(options: argparse.Namespace, job: RerankJob) -> tuple[Ranking, str]:
    from mlxcel.app import build_app, open_models

    config = server_config(options, reranking_only=True)
    app = build_app(config, open_models(config))
    async with app.asgi.router.lifespan_context(app.asgi):
        await app.wait_ready()
        service = app.rooms.rerank
        try:
            return await service.rank(job), service.model.info.kind
        except MlxcelError as error:
            raise StartupError(error.message) from None


def _image(path: Path) -> MediaPart:
    return MediaPart("image", str(path))

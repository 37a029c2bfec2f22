"""``make sweep``: tries every causal model type that transformers knows, each in a process of its own, and writes a page."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

from mlxcel.testing.family_trial import CHUNK_TOKENS, NEW_TOKENS, PROMPT_TOKENS, Outcome, try_family

LIMIT_S = 180.0

_PATHS = {
    "kernels": "native",
    "torch": "native",
    "transformers": "transformers, batched",
    "transformers-stateful": "transformers, per row",
}
_VERDICTS = {
    "differs": "served, but with other tokens",
    "failed": "broke while running",
    "refused": "refused",
    "untried": "not tried",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Try model types; the status is 1 when one of them is served wrongly."""
    parser = argparse.ArgumentParser(prog="python -m mlxcel.testing.sweep", description=__doc__)
    parser.add_argument("families", nargs="*", metavar="MODEL_TYPE", help="default: all that transformers knows")
    parser.add_argument("--page", type=Path, help="write the outcome of all of them to this file")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds one may take (default: %(default)s)")
    options = parser.parse_args(arguments)
    outcomes = []
    context = trial_context()
    for family in options.families or _all_families():
        outcomes.append(try_apart(context, family, options.limit_s))
        sys.stdout.write(f"{family:<32} {outcomes[-1].verdict:<8} {outcomes[-1].path} {outcomes[-1].note}\n")
        sys.stdout.flush()
    if options.page:
        options.page.write_text(page(outcomes), encoding="utf-8")
    return int(any(outcome.verdict in ("differs", "failed") for outcome in outcomes))


def trial_context() -> ForkServerContext:
    """Where trials run: children of a server that has imported torch and transformers once and computed nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mlxcel.testing.family_trial"])
    return context


def try_apart(context: ForkServerContext, family: str, limit_s: float = LIMIT_S) -> Outcome:
    """:func:`~mlxcel.testing.family_trial.try_family` in a child process; a crash or a hang becomes an outcome."""
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_report, args=(family, sender))
    child.start()
    sender.close()
    try:
        if not receiver.poll(limit_s):
            return Outcome(family, "failed", note=f"took more than {limit_s:.0f} s")
        return Outcome(**json.loads(receiver.recv_bytes()))
    except EOFError:
        child.join()
        return Outcome(family, "failed", note=f"the process ended with status {child.exitcode}")
    finally:
        child.kill()
        child.join()
        receiver.close()


def _report(family: str, sender: Connection) -> None:
    """The child: one thread, because the models are tiny; what modules print is dropped."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with Path(os.devnull).open("w") as sink, contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        try:
            outcome = try_family(family)
        except Exception as error:  # any family's modules may raise anything
            outcome = Outcome(family, "failed", note=f"{type(error).__name__}: {error}")
    sender.send_bytes(json.dumps(dataclasses.asdict(outcome)).encode())


def _all_families() -> tuple[str, ...]:
    from mlxcel.testing.tiny_models import causal_families

    return causal_families()


def page(outcomes: Sequence[Outcome]) -> str:
    """The page, in Markdown."""
    import transformers

    equal = Counter(outcome.reference for outcome in outcomes if outcome.verdict == "equal")
    counts = Counter(_kind(outcome) for outcome in outcomes)
    order = [*dict.fromkeys(_PATHS.values()), *_VERDICTS.values()]
    prompts = ", ".join(map(str, PROMPT_TOKENS))
    lines = [
        "<!-- Written by `make sweep`. -->",
        "",
        "# Model types",
        "",
        f"Of the {len(outcomes)} causal model types that transformers {transformers.__version__} knows, {equal.total()} are "
        f"served with the tokens that transformers gives: {equal['generate']} with those of `generate`, and "
        f"{equal['forward']} with those of the model's plain forward pass, where `generate` fails or contradicts it.",
        "",
        "Each is tried with a tiny random checkpoint in float32 through the loader that the server uses: greedy answers of "
        f"{NEW_TOKENS} tokens to prompts of {prompts} tokens, one after another (alone), all together (batched), and all "
        f"together with the prompts fed in pieces of {CHUNK_TOKENS} tokens (chunked). Yes means that every token is equal. "
        "Random weights prove arithmetic, positions and the keeping of state, not the quality of an answer.",
        "",
        "| path | model types |",
        "| --- | --- |",
        *(f"| {kind} | {counts[kind]} |" for kind in order if counts[kind]),
        "",
        "*Native* is a decoder of our own; *batched* runs transformers' modules over the shared paged cache; *per row* "
        "keeps transformers' own cache for each row, because the model has a state that a batch of unequal rows would lose. "
        "`mlxcel inspect -m MODEL` says which one serves a checkpoint.",
        "",
        "| model type | path | alone | batched | chunked | note |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_row(outcome) for outcome in sorted(outcomes, key=lambda outcome: outcome.family)),
    ]
    return "\n".join(lines) + "\n"


def _kind(outcome: Outcome) -> str:
    return _PATHS[outcome.path] if outcome.verdict == "equal" else _VERDICTS[outcome.verdict]


def _row(outcome: Outcome) -> str:
    path = _PATHS.get(outcome.path, _VERDICTS.get(outcome.verdict, ""))
    marks = ["yes" if equal else "no" for equal in (outcome.single, outcome.batched, outcome.chunked)]
    cells = [f"`{outcome.family}`", path, *(marks if outcome.path else [""] * 3), _note(outcome)]
    return f"| {' | '.join(cells)} |"


def _note(outcome: Outcome) -> str:
    """What the path's name does not say already, without figures that depend on the machine."""
    text = re.sub(r"^\S+ (is a native family|has no native decoder)(; )?", "", outcome.note)
    text = re.sub(r"^(batched over paged KV|\w+: )(; )?", "", text)
    text = re.sub(r" \(relative error [^)]*\)", "", text)
    return re.sub(r"[|<]", r"\\\g<0>", text)


if __name__ == "__main__":
    sys.exit(main())

"""Which path serves a model, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunnerChoice:
    """The outcome of :func:`~mlxcel.runners.generate.build.build_runner`.

    Attributes:
        path: "kernels" and "torch" are native decoders; "transformers" runs its modules over paged KV; and
            "transformers-stateful" keeps its own cache object per row.
        reason: why this one and not a faster one.
    """

    path: str
    reason: str

"""Options of the memory check."""

from __future__ import annotations

from dataclasses import dataclass

from mlxcel.config.option import option, parse_bytes, parse_float, switch


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """Memory"""

    limit_bytes: int = option(
        0,
        "--memory-limit",
        env="MLXCEL_MEMORY_LIMIT",
        parse=parse_bytes,
        metavar="SIZE",
        help="memory that weights, KV and activations may take together (0: what is free at the start)",
    )
    headroom_factor: float = option(
        1.2,
        "--headroom-factor",
        env="MLXCEL_HEADROOM_FACTOR",
        parse=parse_float(1, 10),
        metavar="F",
        help="what a model is reckoned to take, over what is modelled of it",
    )
    estimate: bool = switch(False, "--estimate-memory", help="print what the model would take, and leave")
    unchecked: bool = switch(
        False, "--no-memory-check", "--force", help="load a model also when it is reckoned not to fit into the memory"
    )

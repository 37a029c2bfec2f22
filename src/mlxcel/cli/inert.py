"""llama-server's options that have no meaning here: taken at values that change nothing, refused at all others.

Scripts written for llama-server start as they are, and none of them is told in silence that it got what it asked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxcel.core.errors import StartupError

_ON = frozenset({"on", "1", "true", "enabled"})
_OFF = frozenset({"off", "0", "false", "disabled"})
_AUTO = frozenset({"auto", "-1"})
_NOTHING: frozenset[str] = frozenset()
_PREFIX = "inert."


@dataclass(frozen=True, slots=True)
class Inert:
    """One such option.

    Attributes:
        flags: spellings; the last one is shown.
        instead: what to do instead, after "use" or as a sentence of its own.
        values: values that change nothing; None for a flag without a value that is always refused, and an empty set for
            an option whose every value is.
        harmless: a flag without a value that is always taken.
    """

    flags: tuple[str, ...]
    instead: str
    values: frozenset[str] | None = None
    harmless: bool = False


def _value(*flags: str, inert: frozenset[str], instead: str) -> Inert:
    return Inert(flags, instead, inert)


def _refused(*flags: str, instead: str) -> Inert:
    return Inert(flags, instead)


def _harmless(*flags: str) -> Inert:
    return Inert(flags, "", harmless=True)


_NO_CONTROL_VECTORS = "control vectors are not supported; --lora changes a model"
_NO_MEDIA_FILE = "media parts of a model belong into its checkpoint folder"
_NO_TOOLS = "tools are the client's matter"

TABLE: tuple[Inert, ...] = (
    _value("-ngl", "--gpu-layers", "--n-gpu-layers", inert=_AUTO | {"all", "99", "999"}, instead="use --device cpu or cuda"),
    _value("-sm", "--split-mode", inert=frozenset({"none"}), instead="a model runs on one device; choose it with --device"),
    _value("-mg", "--main-gpu", inert=frozenset({"0"}), instead="set CUDA_VISIBLE_DEVICES"),
    _value("-ts", "--tensor-split", inert=_NOTHING, instead="a model runs on one device; choose it with --device"),
    _value("-fa", "--flash-attn", inert=_AUTO | _ON, instead="attention is chosen by the device; see --device"),
    _value("-tb", "--threads-batch", inert=_AUTO, instead="use --threads, which counts for prompts too"),
    _value("--numa", inert=_NOTHING, instead="start the server under numactl"),
    _value("-C", "--cpu-mask", inert=frozenset({""}), instead="start the server under taskset"),
    _value("-Cr", "--cpu-range", inert=_NOTHING, instead="start the server under taskset"),
    _value("--cpu-strict", inert=_OFF, instead="start the server under taskset"),
    _value("--prio", inert=_OFF, instead="start the server under nice"),
    _value("--poll", inert=frozenset({"50"}), instead="there is no polling to tune"),
    _value("--rpc", inert=_NOTHING, instead="a model runs in one process"),
    _value("-ub", "--ubatch-size", inert=frozenset({"512"}), instead="use --prefill-chunk-size"),
    _value("-ot", "--override-tensor", inert=_NOTHING, instead="choose the device of the whole model with --device"),
    _value("-ncmoe", "--n-cpu-moe", inert=_OFF, instead="choose the device of the whole model with --device"),
    _value("-fit", "--fit", inert=_ON, instead="memory is always checked; --no-memory-check leaves that out"),
    _value("-lm", "--load-mode", inert=frozenset({"mmap", "auto"}), instead="checkpoints are always mapped"),
    _value("-hff", "--hf-file", inert=_NOTHING, instead="name the file with -m, or the repository with -hf"),
    _value("-mu", "--model-url", inert=_NOTHING, instead="download the file and name it with -m"),
    _value("-dr", "--docker-repo", inert=_NOTHING, instead="name a hub repository with -hf"),
    _value("-mm", "--mmproj", inert=_NOTHING, instead=_NO_MEDIA_FILE),
    _value("-mmu", "--mmproj-url", inert=_NOTHING, instead=_NO_MEDIA_FILE),
    _value("--control-vector", inert=_NOTHING, instead=_NO_CONTROL_VECTORS),
    _value("--control-vector-scaled", inert=_NOTHING, instead=_NO_CONTROL_VECTORS),
    _value("--control-vector-layer-range", inert=_NOTHING, instead=_NO_CONTROL_VECTORS),
    _value("--path", inert=frozenset({""}), instead="serve files with a web server before this one"),
    _value("--log-prompts-dir", inert=_NOTHING, instead="prompts are not written anywhere; -v logs requests"),
    _value("--apc-block-size", inert=frozenset({"16"}), instead="cached prefixes are kept in blocks of 16 tokens"),
    _value("--apc-hash", inert=frozenset({"sha256"}), instead="cached blocks are named by SHA-256"),
    _value("--apc-num-blocks", inert=_NOTHING, instead="use --prompt-cache-capacity-bytes"),
    _value("--cache-reuse", inert=_OFF, instead="only equal beginnings are reused; see --prompt-cache-enabled"),
    _value("--slot-prompt-similarity", "-sps", inert=_NOTHING, instead="any slot reuses any cached prefix"),
    _value("--tools", inert=_NOTHING, instead=_NO_TOOLS),
    _value("--decode-storage-backend", inert=frozenset({"auto", "paged"}), instead="KV is always paged"),
    _refused("--lora-fuse", instead="adapters stay apart from the weights, so that their scales can change"),
    _refused("--mlock", instead="raise the memory limit of the service so that nothing is swapped"),
    _refused("--no-mmap", instead="checkpoints are always mapped while they are read"),
    _refused("--no-kv-offload", instead="use --device cpu to keep everything off the GPU"),
    _refused("--agent", instead=_NO_TOOLS),
    _refused("--no-jinja", instead="give the template you want with --chat-template"),
    _refused("--no-cont-batching", "-nocb", instead="use --no-batch"),
    _harmless("--mmap"),
    _harmless("-kvo", "--kv-offload"),
    _harmless("--jinja"),
    _harmless("-cb", "--cont-batching"),
    _harmless("--no-webui"),
    _harmless("--no-ui"),
    _harmless("--no-mmproj"),
    _harmless("-nr", "--no-repack"),
    _harmless("--repack"),
    _harmless("-nopo", "--no-op-offload"),
    _harmless("--log-prefix"),
    _harmless("--log-timestamps"),
)


def add_inert(parser: argparse.ArgumentParser) -> None:
    """Let a parser take the options of the table; the help does not show them."""
    for number, item in enumerate(TABLE):
        dest = f"{_PREFIX}{number}"
        if item.values is None:
            parser.add_argument(*item.flags, dest=dest, action="store_const", const="", help=argparse.SUPPRESS)
        else:
            parser.add_argument(*item.flags, dest=dest, help=argparse.SUPPRESS)


def check_inert(arguments: Mapping[str, Any]) -> None:
    """
    Raises:
        StartupError: an option of the table has a value that would change something; names the way to have it.
    """
    for number, item in enumerate(TABLE):
        value = arguments.get(f"{_PREFIX}{number}")
        if value is None or item.harmless or (item.values is not None and value.strip().lower() in item.values):
            continue
        shown = f"{_name(item)} {value}".strip()
        raise StartupError(f"{shown}: not supported; {item.instead}")


def _name(item: Inert) -> str:
    return next((flag for flag in reversed(item.flags) if flag.startswith("--")), item.flags[0])

"""The sandbox that chat templates run in.

The same dialect as Hugging Face's: Jinja2 with trimmed blocks, loop controls, ``raise_exception``, ``strftime_now``, a plain
JSON filter and tolerated ``{% generation %}`` tags. On top of the immutable sandbox every loop and macro counts against an
operation budget, so a template cannot keep a worker busy for ever.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from mlxcel.core.errors import InvalidRequest

_MAX_REPEATED_CHARS = 1_000_000
_MAX_MESSAGE_CHARS = 512
_TICK = "mlxcel_tick"
_ESCAPED_NONCHARACTER = re.compile(r"(?<!\\)\\u(fd[de][0-9a-f])")


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What one rendering may use; operations are loop rounds and macro calls."""

    output_chars: int = 32 * 1024 * 1024
    operations: int = 5_000_000
    seconds: float = 10.0


class TemplateRefusal(jinja2.TemplateError):
    """The template called ``raise_exception``: it does not accept this conversation."""


class _TooMuchWork(jinja2.TemplateError):
    """A limit of this module was reached."""


class _GenerationTag(Extension):
    """``{% generation %}`` marks assistant text for training; for inference it is transparent."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _TemplateNamespace(Namespace):
    """``namespace()`` without underscore names, which Python itself gives meaning to."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.TemplateRuntimeError("namespace attributes must not start with an underscore")
        super().__setitem__(name, value)


def _new_namespace(*args: Any, **kwargs: Any) -> _TemplateNamespace:
    namespace = _TemplateNamespace()
    for name, value in dict(*args, **kwargs).items():
        namespace[name] = value
    return namespace


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _refuse(message: object = "") -> None:
    raise TemplateRefusal(str(message))


def _now(format_text: str) -> str:
    return datetime.now().strftime(format_text)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_listed
    )
    # Guard characters must come through as themselves.
    return _ESCAPED_NONCHARACTER.sub(lambda escape: chr(int(escape[1], 16)), text) if ensure_ascii else text


def _listed(value: object) -> list[Any]:
    """Filters such as ``map`` give generators, which JSON takes as lists."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _is_none(value: object) -> bool:
    """A missing key counts as none: templates test optional fields both ways."""
    return value is None or isinstance(value, jinja2.Undefined)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("*", "**"))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Templates may grow and shrink lists: everything they can reach was built for this one rendering."""
        return (isinstance(obj, list) and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and (abs(left) > 1_000_000 or abs(right) > 64):
            raise _TooMuchWork("number too large")
        if operator == "*":
            for text, count in ((left, right), (right, left)):
                repeats = isinstance(text, (str, list, tuple)) and isinstance(count, int)
                if repeats and len(text) * count > _MAX_REPEATED_CHARS:
                    raise _TooMuchWork("repeated text is too long")
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        repeated: list[nodes.For | nodes.Macro] = [*tree.find_all(nodes.For), *tree.find_all(nodes.Macro)]
        for block in repeated:
            tick = nodes.ExprStmt(nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None))
            block.body.insert(0, tick.set_lineno(block.lineno, override=True))
        return tree


def _build_environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # the output is a prompt, not HTML
        extensions=[_GenerationTag, loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.tests["none"] = _is_none
    for name in ("lipsum", "cycler", "joiner"):
        environment.globals.pop(name, None)
    environment.globals.update(raise_exception=_refuse, strftime_now=_now, dict=_new_dict, namespace=_new_namespace)
    return environment


def _make_tick(limit: int, deadline: float) -> Callable[[], None]:
    operations = 0

    def tick() -> None:
        nonlocal operations
        operations += 1
        if operations > limit or (operations & 1023 == 0 and time.monotonic() > deadline):
            raise _TooMuchWork("the chat template ran too long")

    return tick


class CompiledTemplate:
    """One template source, compiled once; rendering is thread-safe.

    Raises:
        jinja2.TemplateSyntaxError: the source is not a template.
    """

    def __init__(self, source: str) -> None:
        environment = _build_environment()
        self.tree = environment.parse(source)
        self._template = environment.from_string(source)

    def render(self, variables: Mapping[str, Any], limits: RenderLimits) -> str:
        """The rendered text.

        Raises:
            InvalidRequest: the template refuses the conversation, fails on it, or exceeds a limit.
        """
        deadline = time.monotonic() + limits.seconds
        chunks: list[str] = []
        length = 0
        try:
            for chunk in self._template.generate({**variables, _TICK: _make_tick(limits.operations, deadline)}):
                chunks.append(chunk)
                length += len(chunk)
                if length > limits.output_chars or time.monotonic() > deadline:
                    raise _TooMuchWork("the rendered conversation is too long")
        except TemplateRefusal as refusal:
            message = _printable(f"the chat template refuses this conversation: {refusal}")
            raise InvalidRequest(message, param="messages") from None
        except _TooMuchWork as error:
            raise InvalidRequest(f"the conversation cannot be rendered: {error.message}", param="messages") from None
        except Exception as error:  # a template may fail in any way Python can; none of them is the server's fault
            raise InvalidRequest(
                _printable(f"the chat template cannot render this conversation ({type(error).__name__})"), param="messages"
            ) from error
        return "".join(chunks)


def _printable(message: str) -> str:
    """Cut to a length fit for an error body, with control characters blanked."""
    return "".join(character if character.isprintable() else " " for character in message[:_MAX_MESSAGE_CHARS])

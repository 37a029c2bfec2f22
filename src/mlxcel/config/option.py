"""The metadata of one option, kept on the dataclass field that holds its value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, Literal

Kind = Literal["value", "switch", "list"]


@dataclass(frozen=True, slots=True)
class Option:
    """How one field is spelled outside the program.

    Attributes:
        flags: command-line spellings; the first ``--long`` one is canonical.
        env: environment names, strongest first.
        help: one sentence with unit and special values.
        parse: text -> value; raises ValueError with a short reason.
        kind: "switch" takes no value; "list" may be repeated and takes comma lists.
        off_flags: spellings that switch a "switch" off.
        off_env: environment names whose true value switches it off.
        metavar: shown in the help.
        choices: allowed texts, when few.
    """

    flags: tuple[str, ...]
    env: tuple[str, ...]
    help: str
    parse: Callable[[str], Any]
    kind: Kind = "value"
    off_flags: tuple[str, ...] = ()
    off_env: tuple[str, ...] = ()
    metavar: str | None = None
    choices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The canonical flag, as error messages show it."""
        return next((flag for flag in self.flags if flag.startswith("--")), self.flags[0])


_KEY = "option"


def option(
    default: Any,
    *flags: str,
    env: str | tuple[str, ...] = (),
    help: str,
    parse: Callable[[str], Any] = str,
    metavar: str | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Declare a field that takes a value."""
    spec = Option(flags, (env,) if isinstance(env, str) else env, help, parse, metavar=metavar, choices=choices)
    return field(default=default, metadata={_KEY: spec})


def switch(
    default: bool | None,
    *flags: str,
    env: str | tuple[str, ...] = (),
    off: tuple[str, ...] = (),
    off_env: tuple[str, ...] = (),
    help: str,
) -> Any:
    """Declare a field that is switched on by ``flags`` and off by ``off``."""
    envs = (env,) if isinstance(env, str) else env
    return field(default=default, metadata={_KEY: Option(flags, envs, help, parse_bool, "switch", off, off_env)})


def many(*flags: str, env: str | tuple[str, ...] = (), help: str, metavar: str | None = None) -> Any:
    """Declare a field that collects texts into a tuple; the flag repeats and takes comma lists."""
    envs = (env,) if isinstance(env, str) else env
    return field(default=(), metadata={_KEY: Option(flags, envs, help, parse_list, "list", metavar=metavar)})


def options_of(config_type: type[Any]) -> Iterator[tuple[Field[Any], Option]]:
    """The option fields of one configuration dataclass, in order."""
    if not is_dataclass(config_type):
        raise TypeError(f"{config_type.__name__} is not a configuration dataclass")
    for item in fields(config_type):
        spec = item.metadata.get(_KEY)
        if spec is not None:
            yield item, spec


def parse_bool(text: str) -> bool:
    """on/enabled/true/yes/1 and their opposites, in any case."""
    word = text.strip().lower()
    if word in {"on", "enabled", "true", "yes", "1"}:
        return True
    if word in {"off", "disabled", "false", "no", "0", ""}:
        return False
    raise ValueError("expected on or off")


def parse_list(text: str) -> tuple[str, ...]:
    """A comma list without empty members."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def parse_int(minimum: int | None = None, maximum: int | None = None) -> Callable[[str], int]:
    """An integer within the bounds (inclusive)."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("expected an integer") from None
        if minimum is not None and value < minimum:
            raise ValueError(f"must be at least {minimum}")
        if maximum is not None and value > maximum:
            raise ValueError(f"must be at most {maximum}")
        return value

    return parse


def parse_float(minimum: float | None = None, maximum: float | None = None) -> Callable[[str], float]:
    """A finite number within the bounds (inclusive)."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError("expected a number") from None
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError("must be finite")
        if minimum is not None and value < minimum:
            raise ValueError(f"must be at least {minimum:g}")
        if maximum is not None and value > maximum:
            raise ValueError(f"must be at most {maximum:g}")
        return value

    return parse


_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_bytes(text: str) -> int:
    """A size with an optional binary unit: ``512M``, ``1.5G``, ``2147483648``."""
    word = text.strip().lower().removesuffix("b").removesuffix("i")
    number = word.rstrip("kmgt")
    try:
        value = float(number) * _UNITS[word[len(number) :]]
    except (ValueError, KeyError):
        raise ValueError("expected a size such as 512M or 2G") from None
    if not 0 <= value < 2**63:
        raise ValueError("is out of range")
    return int(value)

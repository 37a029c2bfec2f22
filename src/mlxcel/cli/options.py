"""Configuration dataclasses filled from the command line and the environment.

Precedence: flag, then the environment names of an option in their order, then the default.
"""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import Field
from typing import Any, TypeVar

from mlxcel.config.option import Option, options_of, parse_bool
from mlxcel.core.errors import StartupError

Config = TypeVar("Config")
Groups = dict[str, type[Any]]

ADDITIVE_ENV = frozenset({"--api-key"})  # keys from the environment add to those of the command line


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        raise StartupError(message)


def groups_of(config_type: type[Any]) -> Groups:
    """The option groups of a whole configuration, by field name."""
    hints = typing.get_type_hints(config_type)
    return {
        item.name: hints[item.name] for item in dataclasses.fields(config_type) if dataclasses.is_dataclass(hints[item.name])
    }


def build_parser(config_type: type[Any], *, prog: str, description: str) -> argparse.ArgumentParser:
    """An argparse parser with one argument group for each option group; its values stay texts."""
    parser = _Parser(prog=prog, description=description, allow_abbrev=False)
    for group_name, group_type in groups_of(config_type).items():
        section = parser.add_argument_group((group_type.__doc__ or group_name).strip())
        for item, spec in options_of(group_type):
            _add(section, f"{group_name}.{item.name}", item, spec)
    return parser


def _add(section: Any, dest: str, item: Field[Any], spec: Option) -> None:
    env = f" [env: {', '.join(spec.env)}]" if spec.env else ""
    default = default_text(item, spec)
    text = (spec.help + (f" (default: {default})" if default else "") + env).replace("%", "%%")
    if spec.kind == "switch":
        section.add_argument(*spec.flags, dest=dest, action="store_const", const="on", help=text)
        if spec.off_flags:
            section.add_argument(*spec.off_flags, dest=dest, action="store_const", const="off", help=argparse.SUPPRESS)
        return
    action = "append" if spec.kind == "list" or item.type == "tuple[str, ...]" else "store"
    metavar = "{" + ",".join(spec.choices) + "}" if spec.choices else spec.metavar
    section.add_argument(*spec.flags, dest=dest, action=action, metavar=metavar, help=text)


def default_text(item: Field[Any], spec: Option) -> str:
    """The default as a reader would type it; empty when there is none to speak of."""
    default = item.default
    if spec.kind == "list" or default in ("", None) or default is dataclasses.MISSING or isinstance(default, tuple):
        return ""
    return {True: "on", False: "off"}[default] if isinstance(default, bool) else str(default)


def resolve(config_type: type[Config], arguments: Mapping[str, Any], environment: Mapping[str, str]) -> Config:
    """The configuration from parsed arguments and the environment.

    Raises:
        StartupError: a value that does not parse, naming the flag or the variable.
    """
    given: set[str] = set()
    groups: dict[str, Any] = {}
    for group_name, group_type in groups_of(config_type).items():
        values: dict[str, Any] = {}
        for item, spec in options_of(group_type):
            key = f"{group_name}.{item.name}"
            found = _find(spec, item, arguments.get(key), environment)
            if found is not None:
                values[item.name] = found[0]
                given.add(key)
        groups[group_name] = group_type(**values)
    extra = {"given": frozenset(given)} if "given" in {item.name for item in dataclasses.fields(config_type)} else {}  # type: ignore[arg-type]
    return config_type(**groups, **extra)


def _find(spec: Option, item: Field[Any], argument: Any, environment: Mapping[str, str]) -> tuple[Any] | None:
    """The option's value in a 1-tuple, or None when it was not given anywhere."""
    if spec.kind == "list" or isinstance(argument, list):
        texts: Sequence[str] = argument or ()
        values = [part for text in texts for part in _parsed(spec, text, spec.name)]
        if not values or spec.name in ADDITIVE_ENV:
            values += [part for name in spec.env if environment.get(name) for part in _parsed(spec, environment[name], name)]
        return (tuple(values),) if values else None
    if argument is not None:
        return (_parsed(spec, argument, spec.name),)
    for name in spec.env:
        if environment.get(name):
            return (_parsed(spec, environment[name], name),)
    for name in spec.off_env:
        if environment.get(name):
            return (not _parsed(spec, environment[name], name),)
    return None


def _parsed(spec: Option, text: str, source: str) -> Any:
    try:
        if spec.kind == "switch":
            return parse_bool(text)
        if spec.choices and text not in spec.choices:
            raise ValueError(f"must be one of {', '.join(spec.choices)}")
        return spec.parse(text)
    except ValueError as error:
        raise StartupError(f"{source}: {error}") from None

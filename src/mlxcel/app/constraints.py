"""The operator's constraint on every answer."""

from __future__ import annotations

from pathlib import Path

from mlxcel.config.constraints import ConstraintConfig
from mlxcel.config.values import parse_json_object
from mlxcel.core.errors import InvalidRequest, StartupError
from mlxcel.core.jobs import OutputConstraint
from mlxcel.text.constrain import ConstraintFactory


def server_constraint(config: ConstraintConfig) -> OutputConstraint | None:
    """What ``--grammar``, ``--json-schema`` or one of their files asks for.

    Raises:
        StartupError: more than one of them, a file that cannot be read, or a schema that is no JSON object.
    """
    given = {
        "--grammar": config.grammar,
        "--grammar-file": config.grammar_file,
        "--json-schema": config.json_schema,
        "--json-schema-file": config.json_schema_file,
    }
    used = [flag for flag, value in given.items() if value]
    if len(used) > 1:
        raise StartupError(f"{used[0]} and {used[1]}: give one of them")
    if not used:
        return None
    (flag,) = used
    source = _read(flag, given[flag]) if flag.endswith("-file") else given[flag]
    if flag.startswith("--grammar"):
        return OutputConstraint("gbnf", source)
    try:
        return OutputConstraint("json_schema", parse_json_object(source))
    except ValueError as error:
        raise StartupError(f"{flag}: {error}") from None


def check_constraint(constraint: OutputConstraint | None, factory: ConstraintFactory) -> None:
    """
    Raises:
        StartupError: the grammar or schema cannot be enforced; better told now than with every answer.
    """
    if constraint is None:
        return
    flag = "--grammar" if constraint.kind == "gbnf" else "--json-schema"
    try:
        factory.compile(constraint)
    except InvalidRequest as error:
        raise StartupError(f"{flag}: {error.message}") from None


def _read(flag: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise StartupError(f"{flag}: cannot read {path}") from None

"""Options that constrain the output of every request."""

from __future__ import annotations

from dataclasses import dataclass

from mlxcel.config.option import option


@dataclass(frozen=True, slots=True)
class ConstraintConfig:
    """Constrained output"""

    grammar: str = option(
        "", "--grammar", metavar="GBNF", help="grammar of every answer whose request names no format of its own"
    )
    grammar_file: str = option("", "--grammar-file", metavar="FILE", help="file with such a grammar")
    json_schema: str = option(
        "", "-j", "--json-schema", metavar="JSON", help="JSON schema of every answer, under the same condition"
    )
    json_schema_file: str = option("", "-jf", "--json-schema-file", metavar="FILE", help="file with such a schema")

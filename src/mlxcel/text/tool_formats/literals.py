"""Loose literals: JSON, Python literals and bare words, read into values that the request's schema can still type.

What ``ast.literal_eval`` takes for lists, tuples, dicts, strings and scalars, and more that models write, within a depth
limit and without evaluating anything. Strings and bare words stay apart: a quoted ``"5"`` is a string, a bare ``5`` is
typed later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_DEPTH = 64
_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[^,)\]}]+")
_KEY = re.compile(r"[^:]+")
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_STRING_END = re.compile(r"\s*(?:[,:)\]}]|\Z)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, slots=True)
class Bare:
    """An unquoted word: a number, ``True``, ``null``, or anything else."""

    text: str


Value = str | Bare | list["Value"] | dict[str, "Value"]


class LiteralError(ValueError):
    """The text is no literal, or too deep."""


class LiteralReader:
    """Reads values one after another from ``text``; ``position`` is where the next one begins.

    Args:
        text: what to read.
        string_delimiter: when set, the only string quote, on both sides and without escapes (Gemma's ``<|"|>``).
    """

    def __init__(self, text: str, position: int = 0, *, string_delimiter: str = "") -> None:
        self.text = text
        self.position = position
        self._delimiter = string_delimiter

    def skip_space(self) -> None:
        match = _SPACE.match(self.text, self.position)
        self.position = match.end() if match is not None else self.position

    def accept(self, literal: str) -> bool:
        """Skip white space, then consume ``literal`` when it comes next."""
        self.skip_space()
        if not self.text.startswith(literal, self.position):
            return False
        self.position += len(literal)
        return True

    def expect(self, literal: str) -> None:
        if not self.accept(literal):
            raise LiteralError(f"expected {literal!r} at offset {self.position}")

    def value(self, depth: int = 0) -> Value:
        """Read one value. Raises LiteralError."""
        if depth > MAX_DEPTH:
            raise LiteralError("nested too deeply")
        self.skip_space()
        if self._at_string():
            return self.string()
        char = self.text[self.position : self.position + 1]
        if char == "{":
            return self.mapping(depth)
        if char in ("[", "("):
            return self._sequence(char, depth)
        return Bare(self._bare(_WORD))

    def mapping(self, depth: int = 0) -> dict[str, Value]:
        """Read ``{key: value, ...}``; keys are quoted or bare."""
        self.expect("{")
        members: dict[str, Value] = {}
        while not self.accept("}"):
            self.skip_space()
            key = self.string() if self._at_string() else self._bare(_KEY)
            self.expect(":")
            members[key] = self.value(depth + 1)
            if not self.accept(","):
                self.expect("}")
                break
        return members

    def _sequence(self, opening: str, depth: int) -> list[Value]:
        self.expect(opening)
        items: list[Value] = []
        while not self.accept(_CLOSING[opening]):
            items.append(self.value(depth + 1))
            if not self.accept(","):
                self.expect(_CLOSING[opening])
                break
        return items

    def _bare(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.position)
        word = match.group().strip() if match is not None else ""
        if match is None or not word:
            raise LiteralError(f"expected a value at offset {self.position}")
        self.position = match.end()
        return word

    # ---- strings ----------------------------------------------------------------------------------------------------

    def _at_string(self) -> bool:
        if self._delimiter:
            return self.text.startswith(self._delimiter, self.position)
        return self.text[self.position : self.position + 1] in ("'", '"')

    def string(self) -> str:
        if self._delimiter:
            start = self.position + len(self._delimiter)
            end = self.text.find(self._delimiter, start)
            if end < 0:
                raise LiteralError("unterminated string")
            self.position = end + len(self._delimiter)
            return self.text[start:end]
        return self._quoted()

    def _quoted(self) -> str:
        """Read a Python or JSON string, triple-quoted ones included.

        Templates of some families write strings without escaping (``'it's'``), so a single quote only ends the string where
        a string can end: before a comma, a closing bracket, a colon or the end.
        """
        quote = self.text[self.position]
        triple = self.text.startswith(quote * 3, self.position)
        terminator = quote * 3 if triple else quote
        special = re.compile(rf"\\|{terminator}")
        parts: list[str] = []
        position = self.position + len(terminator)
        while (match := special.search(self.text, position)) is not None:
            parts.append(self.text[position : match.start()])
            position = match.end()
            if match.group() == "\\":
                piece, position = self._escape(position)
                parts.append(piece)
            elif triple or _STRING_END.match(self.text, position):
                self.position = position
                return _join_surrogates("".join(parts))
            else:
                parts.append(quote)
        raise LiteralError("unterminated string")

    def _escape(self, position: int) -> tuple[str, int]:
        """Decode the escape whose letter is at ``position``; an unknown one is kept as written, as Python does."""
        letter = self.text[position : position + 1]
        if letter in _HEX_DIGITS:
            digits = self.text[position + 1 : position + 1 + _HEX_DIGITS[letter]]
            if len(digits) == _HEX_DIGITS[letter] and re.fullmatch(r"[0-9A-Fa-f]+", digits) and int(digits, 16) <= 0x10FFFF:
                return chr(int(digits, 16)), position + 1 + len(digits)
        if letter in _ESCAPES:
            return _ESCAPES[letter], position + 1
        if letter and letter in "\\'\"/":
            return letter, position + 1
        return "\\" + letter, position + 1


def _join_surrogates(text: str) -> str:
    r"""Join ``\ud83d\ude00`` pairs, as JSON writes characters outside the basic plane; lone halves become U+FFFD."""
    if not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

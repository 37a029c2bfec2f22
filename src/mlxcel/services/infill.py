"""Fill in the middle: the prompt of a model that was trained with markers around what comes before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlxcel.core.errors import CapabilityMissing, InvalidRequest
from mlxcel.text.tokenizer import Tokenizer
from mlxcel.text.tokenizer_parts import FimRole

_AFTER_THE_GAP: tuple[FimRole, ...] = ("pad", "repo", "sep")
_REPOSITORY = "myproject\n"
_CURRENT_FILE = "filename\n"
_UNNAMED = "tmp"
_PLAIN_SEPARATOR = "\n\n--- snippet ---\n\n"


@dataclass(frozen=True, slots=True)
class ExtraFile:
    """Text of another file that helps to fill the gap."""

    filename: str
    text: str


class InfillService:
    """Assembles fill-in-the-middle prompts.

    Args:
        suffix_first: put the suffix block before the prefix block (``--spm-infill``).
    """

    def __init__(self, tokenizer: Tokenizer, *, suffix_first: bool = False) -> None:
        self._tokenizer = tokenizer
        self._suffix_first = suffix_first

    @property
    def stop_ids(self) -> frozenset[int]:
        """Markers that a model writes when the gap is filled: it pads, or goes on with another file."""
        ids = self._tokenizer.fim_ids
        return frozenset(ids[role] for role in _AFTER_THE_GAP if role in ids)

    def prompt(self, prefix: str, suffix: str, text: str, extra: Sequence[ExtraFile]) -> tuple[int, ...]:
        """Token ids: other files, then prefix and suffix blocks, then the middle marker.

        ``text`` goes on after the prefix.

        Raises:
            CapabilityMissing: the vocabulary has no fill-in-the-middle markers.
            InvalidRequest: a text contains one of the model's own markers.
        """
        ids = self._tokenizer.fim_ids
        if not ids:
            raise CapabilityMissing(
                "the loaded model has no fill-in-the-middle tokens; POST /infill needs a model with them"
            )
        fields = {"input_prefix": prefix, "input_suffix": suffix, "prompt": text}
        for number, item in enumerate(extra):
            fields[f"input_extra[{number}].filename"] = item.filename
            fields[f"input_extra[{number}].text"] = item.text
        self._refuse_markers(fields)
        before = [ids["prefix"], *self._encode(prefix), *self._encode(text)]
        after = [ids["suffix"], *self._encode(suffix)]
        blocks = after + before if self._suffix_first else before + after
        start = [self._tokenizer.bos_id] if self._tokenizer.adds_bos and self._tokenizer.bos_id is not None else []
        return (*start, *self._extra(extra), *blocks, ids["middle"])

    def _extra(self, extra: Sequence[ExtraFile]) -> list[int]:
        ids = self._tokenizer.fim_ids
        tokens: list[int] = []
        if not extra:
            return tokens
        if "repo" in ids:
            tokens += [ids["repo"], *self._encode(_REPOSITORY)]
        for item in extra:
            if "sep" in ids:
                tokens += [ids["sep"], *self._encode(f"{item.filename or _UNNAMED}\n")]
            else:
                tokens += self._encode(_PLAIN_SEPARATOR)
            tokens += self._encode(item.text)
        if "sep" in ids:
            tokens += [ids["sep"], *self._encode(_CURRENT_FILE)]
        return tokens

    def _refuse_markers(self, fields: Mapping[str, str]) -> None:
        markers = [piece for token_id in self._tokenizer.fim_ids.values() if (piece := self._tokenizer.piece(token_id))]
        for name, text in fields.items():
            for marker in markers:
                if marker in text:
                    raise InvalidRequest(f"'{name}' must not contain the model's own marker {marker}", param=name)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, parse_special=False)

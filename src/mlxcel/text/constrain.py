"""Output that must conform to a schema or grammar, enforced token by token with llguidance.

A compiled grammar yields, at each step, the set of tokens that keep the output conforming. Compilation takes a millisecond
for ordinary schemas; callers still run it off the event loop, because the first one builds the vocabulary's index.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import llguidance
from llguidance.gbnf_to_lark import any_to_lark

from mlxcel.core.errors import GenerationFailed, InvalidRequest
from mlxcel.core.jobs import OutputConstraint
from mlxcel.text.control_text import ControlTextScanner
from mlxcel.text.grammar_trial import GrammarTrial, parser_limits
from mlxcel.text.schema_limits import MAX_SOURCE_BYTES, check_schema, enforceable_schema
from mlxcel.text.tokenizer import Tokenizer
from mlxcel.text.tool_grammars import tool_call_grammar, tool_call_lark

__all__ = ["ConstraintFactory", "tool_call_grammar"]

DEFAULT_DEADLINE_S = 5.0
_CACHED_GRAMMARS = 64
# White space between JSON tokens: at most one line break with its indentation. Unbounded white space is a trap that weak
# models fall into and never leave.
_WHITE_SPACE = r"\r?\n?[ \t]{0,40}"
# \u escapes are left out: they can spell a declared property's name in a second way and so evade its schema.
_JSON_OPTIONS: Mapping[str, Any] = {
    "whitespace_flexible": True,
    "whitespace_pattern": _WHITE_SPACE,
    "coerce_one_of": False,
    "lenient": False,
    "json_allowed_escapes": '"\\bfnrt',
}
# Beginnings of compiler messages, and what may be said to the client. The rest of such a message can quote the schema.
_EXPLANATIONS = (
    ("Unimplemented keys", "uses a keyword that cannot be enforced"),
    ("oneOf constraints", "uses oneOf with alternatives that cannot be told apart; use anyOf"),
    ("min/maxProperties", "uses minProperties or maxProperties together with optional properties, which cannot be enforced"),
    ("Invalid type", "names a type that does not exist"),
    ("Pointer", "has a $ref that points nowhere"),
    ("Resource", "has a $ref that points outside of the schema"),
    ("regex parse error", "has a pattern that is invalid or uses look-around or back-references"),
    ("Unsatisfiable", "cannot be satisfied by any value"),
    ("NoExtension", "cannot be satisfied by any finite value"),
    ("schema must be", "has a subschema that is neither an object nor a boolean"),
)  # fmt: skip


class _Constraint:
    """One row's matcher; see :class:`mlxcel.core.ports.Constraint`."""

    def __init__(self, matcher: llguidance.LLMatcher, mask_words: int) -> None:
        self._matcher = matcher
        self._mask_words = mask_words

    def fill_mask(self, address: int, word_count: int) -> None:
        """Write the mask; tokens beyond the tokenizer's vocabulary (padding rows of the model) are never allowed.

        Raises:
            GenerationFailed: the grammar became too complex at this point of the output, or admits no token at all.
        """
        own_bytes = self._mask_words * 4
        if word_count >= self._mask_words:
            self._matcher.unsafe_compute_mask_ptr(address, own_bytes)
            ctypes.memset(address + own_bytes, 0, word_count * 4 - own_bytes)
        else:
            scratch = (ctypes.c_int32 * self._mask_words)()
            self._matcher.unsafe_compute_mask_ptr(ctypes.addressof(scratch), own_bytes)
            ctypes.memmove(address, scratch, word_count * 4)
        if self._matcher.is_error():
            raise GenerationFailed("the output constraint became too complex to follow")

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.consume_token(token_id))

    def rollback(self, token_count: int) -> None:
        if token_count > 0 and not self._matcher.rollback(token_count):
            raise GenerationFailed("the output constraint could not be rolled back")

    @property
    def is_finished(self) -> bool:
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()


class ConstraintFactory:
    """Compiles constraints for one tokenizer. Thread-safe.

    The vocabulary index (a second for 150,000 tokens) is built at the first use; compiled grammars are kept and copied.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._vocabulary: llguidance.LLTokenizer | None = None
        self._known: OrderedDict[str, llguidance.LLMatcher | str] = OrderedDict()  # compiled, or the complaint
        self._controls = ControlTextScanner(
            tokenizer.piece(token_id) for token_id in tokenizer.special_ids if tokenizer.piece(token_id)
        )
        self._trial = GrammarTrial()

    @property
    def is_supported(self) -> bool:
        """False when the vocabulary's bytes are not known exactly; every compilation then fails."""
        return self._tokenizer.constrainable

    def compile(self, constraint: OutputConstraint, *, deadline_s: float = DEFAULT_DEADLINE_S) -> _Constraint:
        """A fresh matcher for one row.

        Raises:
            InvalidRequest: the vocabulary is not supported, or the schema or grammar is invalid, too large or too complex,
                or says something that cannot be enforced.
            TimedOut: too many other grammars were waiting to be compiled.
        """
        if not self.is_supported:
            raise InvalidRequest(
                "UnsupportedTokenizer: structured output needs a BPE vocabulary (tokenizer.json), which this model lacks",
                param="response_format",
            )
        source = self._grammar(constraint)
        key = hashlib.sha256(source.grammar.encode("utf-8", "replace")).hexdigest()
        with self._lock:
            vocabulary = self._index()
            verdict = self._known.get(key)
        if verdict is None:
            complaint = self._trial.complaint(source.trial_grammar or source.grammar, deadline_s)
            verdict = complaint or _compile(vocabulary, source)
        with self._lock:
            self._known[key] = verdict
            self._known.move_to_end(key)
            while len(self._known) > _CACHED_GRAMMARS:
                self._known.popitem(last=False)
            if isinstance(verdict, str):
                raise InvalidRequest(_explain(verdict, source.what), param=source.param)
            return _Constraint(verdict.deep_copy(), (vocabulary.vocab_size + 31) // 32)

    def close(self) -> None:
        """Release the helper process. Compiled constraints stay usable."""
        self._trial.close()

    # ---- sources ------------------------------------------------------------------------------------------------------

    def _grammar(self, constraint: OutputConstraint) -> _Source:
        kind, source = constraint.kind, constraint.source
        if kind == "json_object":
            return _Source(self._schema_grammar({"type": "object"}), "JSON object")
        if kind == "json_schema" and isinstance(source, Mapping):
            check_schema(source, "response_format")
            return _Source(self._schema_grammar(source), "JSON schema")
        if kind == "tool_calls" and isinstance(source, Mapping):
            for tool in source["tools"]:
                check_schema(tool["parameters"], "tools")
            tools = [{**tool, "parameters": enforceable_schema(tool["parameters"])} for tool in source["tools"]]
            lark, trial = (
                llguidance.LLMatcher.grammar_from_lark(tool_call_lark({**source, "tools": tools}, literal, _JSON_OPTIONS))
                for literal in (self._literal, _quoted)
            )
            return _Source(lark, "JSON schema of a tool", "tools", trial)
        if not isinstance(source, str):
            raise InvalidRequest(f"a constraint of kind {kind} has the wrong type", param="response_format")
        if len(source.encode("utf-8", "replace")) > MAX_SOURCE_BYTES:
            raise InvalidRequest(f"the grammar is larger than {MAX_SOURCE_BYTES // 1024} KiB", param="grammar")
        if kind == "regex":
            return _Source(llguidance.LLMatcher.grammar_from_regex(source), "regular expression", "grammar")
        lark = _lark_from_gbnf(source) if kind == "gbnf" else source
        return _Source(llguidance.LLMatcher.grammar_from_lark(lark), "grammar", "grammar")

    def _schema_grammar(self, schema: Mapping[str, Any]) -> str:
        text = json.dumps(enforceable_schema(schema), ensure_ascii=False)
        try:
            return str(llguidance.LLMatcher.grammar_from_json_schema(text, overrides=dict(_JSON_OPTIONS)))
        except ValueError as error:
            raise InvalidRequest("the JSON schema is invalid", param="response_format") from error

    def _literal(self, text: str) -> str:
        """Fixed text in Lark notation; control tokens by their id, so that only the real token matches."""
        pieces: list[str] = []
        position = 0
        for start, control in self._controls.spans(text):
            pieces += [_quoted(text[position:start]), f"<[{self._tokenizer.token_id(control)}]>"]
            position = start + len(control)
        pieces.append(_quoted(text[position:]))
        return " ".join(piece for piece in pieces if piece)

    def _index(self) -> llguidance.LLTokenizer:
        """The vocabulary index; built once, under the lock."""
        if self._vocabulary is None:
            wrapped = llguidance.TokenizerWrapper(_VocabularyView(self._tokenizer, self._controls))
            self._vocabulary = llguidance.LLTokenizer(wrapped, eos_token=sorted(self._tokenizer.eos_ids))
        return self._vocabulary


@dataclass(frozen=True, slots=True)
class _Source:
    """The compiler's input, what to call it in messages, and the request field it came from.

    ``trial_grammar`` replaces ``grammar`` where the real vocabulary is not at hand: it spells control tokens as text.
    """

    grammar: str
    what: str
    param: str = "response_format"
    trial_grammar: str | None = None


def _compile(vocabulary: llguidance.LLTokenizer, source: _Source) -> llguidance.LLMatcher:
    try:
        matcher = llguidance.LLMatcher(vocabulary, source.grammar, log_level=0, limits=parser_limits())
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in the Rust library is no Exception
        raise InvalidRequest(f"the {source.what} cannot be compiled", param=source.param) from error
    if matcher.is_error():
        raise InvalidRequest(_explain(matcher.get_error(), source.what), param=source.param)
    return matcher


class _VocabularyView:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, controls: ControlTextScanner) -> None:
        self._tokenizer = tokenizer
        self._controls = controls
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)

    def __call__(self, text: bytes | str) -> list[int]:
        """The canonical tokens of text that a grammar forces.

        Marker tokens such as ``<tool_call>`` count as text there; control tokens do not, whatever the text spells.
        """
        decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        has_control = next(self._controls.spans(decoded), None) is not None
        return self._tokenizer.encode(decoded, parse_special=not has_control)


def _quoted(text: str) -> str:
    """A Lark string, which is written like a JSON string; nothing for empty text."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def _lark_from_gbnf(source: str) -> str:
    try:
        return str(any_to_lark(source))
    except Exception as error:  # the converter raises its own errors, and whatever malformed input provokes
        raise InvalidRequest("the grammar is not valid GBNF", param="grammar") from error


def _explain(message: str, what: str) -> str:
    for beginning, explanation in _EXPLANATIONS:
        if message.startswith(beginning):
            return f"the {what} {explanation}"
    return f"the {what} is invalid or too complex"

"""Schemas and grammars that are broken, unenforceable or hostile: a short refusal to the sender, and nobody else notices."""

from __future__ import annotations

import copy
import ctypes
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from mlxcel.core.chat import ToolSpec
from mlxcel.core.errors import InvalidRequest
from mlxcel.core.jobs import OutputConstraint
from mlxcel.testing.tiny_tokenizer import write_tiny_tokenizer
from mlxcel.text.constrain import ConstraintFactory, tool_call_grammar
from mlxcel.text.grammar_trial import GrammarTrial
from mlxcel.text.tokenizer import Tokenizer, load_tokenizer
from mlxcel.text.tool_formats.base import JsonCallShape

HERMES = JsonCallShape(open="<tool_call>\n", close="\n</tool_call>", arguments_key="arguments", separator="\n")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_tiny_tokenizer(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def factory(tokenizer: Tokenizer) -> Iterator[ConstraintFactory]:
    made = ConstraintFactory(tokenizer)
    yield made
    made.close()


def schema(document: dict[str, Any]) -> OutputConstraint:
    return OutputConstraint("json_schema", document)


def holding(inner: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"p": inner}, "required": ["p"]}


def writes(factory: ConstraintFactory, tokenizer: Tokenizer, constraint: OutputConstraint, text: str) -> bool:
    matcher = factory.compile(constraint)
    words = (ctypes.c_int32 * 16)()
    for token_id in tokenizer.encode(text):
        matcher.fill_mask(ctypes.addressof(words), 16)
        if not words[token_id // 32] >> (token_id % 32) & 1 or not matcher.accept(token_id):
            return False
    return True


class TestAcceptedAlthoughUnusual:
    @pytest.mark.parametrize(
        ("document", "text"),
        [
            ({"type": "object", "properties": {}}, '{"x": 1}'),
            ({"properties": {}}, "{}"),
            (holding(holding({"type": "string", "maxLength": 65536})), '{"p": {"p": "abc"}}'),
            (holding({"type": "string", "maxLength": 2000}), '{"p": "abc"}'),
            ({"type": "array", "maxItems": 50, "items": holding({"type": "string", "maxLength": 2000})}, '[{"p": "a"}]'),
            ({"type": "array", "maxItems": 50, "items": holding({"type": "string", "maxLength": 10000})}, '[{"p": "a"}]'),
            (holding({"type": "string", "pattern": "(a+)+$"}), '{"p": "baaa"}'),
            (holding({"type": "string", "pattern": "^(a|aa)+$"}), '{"p": "aaa"}'),
            (holding({"type": "string", "pattern": "\\p{L}"}), '{"p": "é"}'),
            ({"type": "object", "properties": {"c": {"$ref": "#"}}}, '{"c": {"c": {}}}'),
            ({"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "null"}}}, "[null]"),
            ({"type": "object", "title": "T", "description": "D", "examples": [{"a": 1}], "default": {}, "x-ours": 1}, "{}"),
            ({"type": "integer", "format": "int32", "nullable": True}, "12"),
            ({"type": "string", "maxLength": 0}, '""'),
            ({"enum": [f"value-{number}" for number in range(2000)]}, '"value-1500"'),
        ],
    )
    def test_schemas(self, factory: ConstraintFactory, tokenizer: Tokenizer, document: dict[str, Any], text: str) -> None:
        assert writes(factory, tokenizer, schema(document), text)

    def test_a_long_bound_is_kept_to_the_character(self, factory: ConstraintFactory, tokenizer: Tokenizer) -> None:
        document = {"type": "string", "maxLength": 2000}
        assert writes(factory, tokenizer, schema(document), '"' + "a" * 2000 + '"')
        assert not writes(factory, tokenizer, schema(document), '"' + "a" * 2001 + '"')

    def test_one_odd_tool_does_not_spoil_the_others(self, factory: ConstraintFactory, tokenizer: Tokenizer) -> None:
        nested = {"type": "object", "properties": {"inner": holding({"type": "string", "maxLength": 65536})}}
        tools = (
            ToolSpec("plain", None, {"type": "object", "properties": {"a": {"type": "integer"}}}),
            ToolSpec("nothing", None, {"properties": {}}),
            ToolSpec("large", None, nested),
        )
        call = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
        grammar = tool_call_grammar(HERMES, tools, named=False)
        for name, arguments in (("plain", '{"a": 1}'), ("nothing", "{}"), ("large", '{"inner": {"p": "x"}}')):
            assert writes(factory, tokenizer, grammar, call.format(name, arguments))

    def test_a_large_set_of_tools(self, factory: ConstraintFactory, tokenizer: Tokenizer) -> None:
        properties = {f"p{number}": {"type": "string", "description": "d" * 60, "maxLength": 10000} for number in range(12)}
        parameters = {
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": properties,
            "required": ["p0"], "additionalProperties": False,
        }  # fmt: skip
        tools = tuple(ToolSpec(f"tool_{number}", "d", parameters) for number in range(40))
        text = '<tool_call>\n{"name": "tool_37", "arguments": {"p0": "x", "p7": "y"}}\n</tool_call>'
        assert writes(factory, tokenizer, tool_call_grammar(HERMES, tools, named=False), text)


class TestRefused:
    @pytest.mark.parametrize(
        ("document", "why"),
        [
            ({"properties": {"foo": "bar"}}, "neither an object nor a boolean"),
            ({"type": "something"}, "a type that does not exist"),
            ({"$ref": "#/nope"}, "points nowhere"),
            ({"$ref": "https://example.org/schema"}, "points outside"),
            ({"$ref": "file:///etc/passwd"}, "points outside"),
            ({"$ref": "#"}, "cannot be satisfied"),
            ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "be satisfied"),
            (holding({"type": "string", "minLength": 5, "maxLength": 2}), "cannot be satisfied"),
            ({"not": {"type": "string"}}, "keyword that cannot be enforced"),
            ({"type": "array", "uniqueItems": True}, "keyword that cannot be enforced"),
            ({"type": "array", "contains": {"type": "string"}}, "keyword that cannot be enforced"),
            ({"if": {"type": "string"}, "then": {"minLength": 2}}, "keyword that cannot be enforced"),
            ({"type": "object", "dependentRequired": {"a": ["b"]}}, "keyword that cannot be enforced"),
            ({"type": "object", "propertyNames": {"pattern": "^a"}}, "keyword that cannot be enforced"),
            ({"type": "object", "unevaluatedProperties": False}, "keyword that cannot be enforced"),
            ({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 3}]}, "oneOf"),
            (holding({"type": "string", "pattern": "(?<=x)+"}), "pattern"),
            (holding({"type": "string", "pattern": "^(?!x)"}), "pattern"),
            (holding({"type": "string", "pattern": "\\1"}), "pattern"),
            (holding({"type": "string", "pattern": "["}), "pattern"),
            (holding({"type": "string", "pattern": "(" * 10000 + "a" + ")" * 10000}), "pattern"),
            (holding({"type": "string", "pattern": "(" * 10000}), "pattern"),
        ],
    )
    def test_schemas(self, factory: ConstraintFactory, document: dict[str, Any], why: str) -> None:
        with pytest.raises(InvalidRequest, match=why) as caught:
            factory.compile(schema(document))
        assert caught.value.param == "response_format"
        assert len(caught.value.message) < 200

    @pytest.mark.parametrize(
        ("kind", "source", "why"),
        [
            ("gbnf", "root ::= (", "not valid GBNF"),
            ("gbnf", "root ::= " + "(" * 30000 + '"a"' + ")" * 30000, "not valid GBNF"),
            ("gbnf", "nothing of the kind", "invalid|not valid"),
            ("gbnf", "root ::= missing", "not valid GBNF"),
            ("lark", 'start: "a', "invalid"),
            ("lark", "start: " + "(" * 30000 + '"a"' + ")" * 30000, "invalid|complex"),
            ("regex", "(a", "invalid"),
            ("regex", "a" * 70000, "64 KiB"),
            ("gbnf", "# " + "é" * 40000, "64 KiB"),
        ],
    )
    def test_grammars(self, factory: ConstraintFactory, kind: Any, source: str, why: str) -> None:
        with pytest.raises(InvalidRequest, match=why) as caught:
            factory.compile(OutputConstraint(kind, source))
        assert caught.value.param == "grammar"
        assert len(caught.value.message) < 200

    @pytest.mark.parametrize(
        "secret",
        [{"type": "sesame-77"}, {"$ref": "#/sesame-77"}, holding({"type": "string", "pattern": "(?<=sesame-77)"}),
         {"not": {"const": "sesame-77"}}, {"properties": {"sesame-77": 3}}, holding({"pattern": "sesame-77("}),
         {"allOf": [{"const": "sesame-77"}, {"const": "other"}]}, {"type": "string", "pattern": "sesame-77" * 9000}],
    )  # fmt: skip
    def test_the_document_is_never_quoted(self, factory: ConstraintFactory, secret: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequest) as caught:
            factory.compile(schema(secret))
        assert "sesame" not in caught.value.message

    def test_a_tool_s_schema_is_named_as_such(self, factory: ConstraintFactory) -> None:
        tool = ToolSpec("f", None, {"type": "object", "properties": {"x": {"not": {}}}})
        with pytest.raises(InvalidRequest, match="schema of a tool") as caught:
            factory.compile(tool_call_grammar(HERMES, (tool,), named=True))
        assert caught.value.param == "tools"

    def test_compiler_options_cannot_be_smuggled_in(self, factory: ConstraintFactory, tokenizer: Tokenizer) -> None:
        document = {"type": "object", "not": {}, "x-guidance": {"lenient": True}}
        with pytest.raises(InvalidRequest, match="cannot be enforced"):
            factory.compile(schema(document))
        wide = {"type": "object", "x-guidance": {"whitespace_pattern": "[ ]+"}}
        assert not writes(factory, tokenizer, schema(wide), "{" + " " * 200)


class TestSizes:
    def nested(self, levels: int) -> dict[str, Any]:
        document: dict[str, Any] = {"type": "null"}
        for _ in range(levels - 1):
            document = {"type": "object", "properties": {"p": document}}
        return document

    def test_depth(self, factory: ConstraintFactory) -> None:
        factory.compile(schema(self.nested(32)))
        for levels in (33, 5000):
            with pytest.raises(InvalidRequest, match="deeper than 32"):
                factory.compile(schema(self.nested(levels)))

    def test_depth_of_plain_data(self, factory: ConstraintFactory) -> None:
        value: Any = 1
        for _ in range(5000):
            value = [value]
        with pytest.raises(InvalidRequest, match="deeper than 32"):
            factory.compile(schema({"const": value}))

    def test_references(self, factory: ConstraintFactory) -> None:
        def document(count: int) -> dict[str, Any]:
            reference = {"$ref": "#/$defs/n"}
            properties = {f"p{number}": copy.copy(reference) for number in range(count)}
            return {"$defs": {"n": {"type": "null"}}, "type": "object", "properties": properties}

        factory.compile(schema(document(64)))
        with pytest.raises(InvalidRequest, match=r"more than 64 \$ref"):
            factory.compile(schema(document(65)))

    def test_bytes(self, factory: ConstraintFactory) -> None:
        def document(size: int) -> dict[str, Any]:
            empty = len(json.dumps({"type": "null", "description": ""}))
            return {"type": "null", "description": "x" * (size - empty)}

        factory.compile(schema(document(65536)))
        with pytest.raises(InvalidRequest, match="larger than 64 KiB"):
            factory.compile(schema(document(65537)))

    def test_the_limits_come_before_any_work(self, factory: ConstraintFactory) -> None:
        started = time.process_time()
        for document in ({"enum": ["x" * 100] * 50_000}, self.nested(20_000)):
            with pytest.raises(InvalidRequest):
                factory.compile(schema(document))
        assert time.process_time() - started < 3


class TestHostileGrammars:
    """Found by trying: each of these keeps the compiler busy for minutes or overflows its stack."""

    @pytest.mark.parametrize(
        "document",
        [
            {"type": "integer", "multipleOf": 99999999},
            {"allOf": [{"type": "string", "pattern": f".*a.{{{number}}}"} for number in range(40)]},
        ],
    )
    def test_endless_compilation_is_cut_off(self, factory: ConstraintFactory, document: dict[str, Any]) -> None:
        started = time.monotonic()
        with pytest.raises(InvalidRequest, match="too complex"):
            factory.compile(schema(document), deadline_s=0.5)
        assert time.monotonic() - started < 10
        factory.compile(schema({"type": "null", "title": str(started)}))  # the next one is served

    def test_a_stack_overflow_stays_in_the_child(self, factory: ConstraintFactory) -> None:
        rules = "".join(f"r{number}: {'(' * 15}r{number + 1}{')' * 15}\n" for number in range(1000))
        source = "start: r0\n" + rules + 'r1000: "a"\n'
        with pytest.raises(InvalidRequest, match="too complex"):
            factory.compile(OutputConstraint("lark", source), deadline_s=20)
        factory.compile(OutputConstraint("lark", 'start: "after" "wards"'))

    def test_neighbours_compile_while_one_is_refused(self, factory: ConstraintFactory) -> None:
        outcomes: list[str] = []

        def bad() -> None:
            try:
                factory.compile(schema({"type": "integer", "multipleOf": 99999998}), deadline_s=0.5)
            except InvalidRequest:
                outcomes.append("refused")

        def good(number: int) -> None:
            factory.compile(schema({"const": f"neighbour {number}"}), deadline_s=30)
            outcomes.append("served")

        threads = [threading.Thread(target=bad), *(threading.Thread(target=good, args=(number,)) for number in range(4))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["refused", *["served"] * 4]

    def test_a_child_that_is_gone_is_replaced(self) -> None:
        trial = GrammarTrial()
        assert trial.complaint("", 20) != "", "an empty grammar has no start"
        trial.close()
        assert trial.complaint('{"grammars": [{"json_schema": {"type": "null"}}]}', 20) == ""
        trial.close()
        trial.close()


class TestUnsupportedVocabularies:
    def test_sentencepiece(self, tmp_path: Path) -> None:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["the river runs"] * 3), model_prefix=str(tmp_path / "tokenizer"), vocab_size=280,
            model_type="bpe", byte_fallback=True, hard_vocab_limit=False, minloglevel=5,
        )  # fmt: skip
        factory = ConstraintFactory(load_tokenizer(tmp_path))
        assert not factory.is_supported
        with pytest.raises(InvalidRequest, match="UnsupportedTokenizer"):
            factory.compile(OutputConstraint("json_object", {}))

    def test_bert(self, tmp_path: Path) -> None:
        (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
        with pytest.raises(InvalidRequest, match="UnsupportedTokenizer"):
            ConstraintFactory(load_tokenizer(tmp_path)).compile(OutputConstraint("json_object", {}))


def test_a_verdict_is_remembered(factory: ConstraintFactory) -> None:
    """Who sends the same hostile schema again and again does not get to spend the time again and again."""
    document = schema({"type": "integer", "multipleOf": 99999997})
    durations = []
    for _ in range(3):
        started = time.perf_counter()
        with pytest.raises(InvalidRequest, match="too complex"):
            factory.compile(document, deadline_s=0.5)
        durations.append(time.perf_counter() - started)
    assert durations[0] >= 0.5
    assert max(durations[1:]) < 0.25


def test_compiled_grammars_are_kept(factory: ConstraintFactory) -> None:
    document = schema({"enum": [f"kept-{number}" for number in range(1500)]})
    durations = []
    for _ in range(3):
        started = time.perf_counter()
        factory.compile(document)
        durations.append(time.perf_counter() - started)
    assert min(durations[1:]) < durations[0]

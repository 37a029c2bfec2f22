"""Constrained output: what is allowed conforms, calls can be forced, and matchers keep the promises of their seam."""

from __future__ import annotations

import ctypes
import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from mlxcel.core.chat import ToolSpec
from mlxcel.core.errors import GenerationFailed
from mlxcel.core.jobs import OutputConstraint
from mlxcel.core.ports import Constraint
from mlxcel.testing.tiny_tokenizer import write_tiny_tokenizer
from mlxcel.text.constrain import ConstraintFactory, tool_call_grammar
from mlxcel.text.tokenizer import Tokenizer, load_tokenizer
from mlxcel.text.tool_formats.base import JsonCallShape


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


def allowed(constraint: Constraint, vocab_size: int = 512) -> set[int]:
    words = (ctypes.c_int32 * ((vocab_size + 31) // 32))()
    constraint.fill_mask(ctypes.addressof(words), len(words))
    return {token_id for token_id in range(vocab_size) if words[token_id // 32] >> (token_id % 32) & 1}


def accepts(factory: ConstraintFactory, tokenizer: Tokenizer, constraint: OutputConstraint, text: str) -> bool:
    """Feed ``text`` token by token; every token must be in the mask, and the end of the turn after the last."""
    matcher = factory.compile(constraint)
    for token_id in tokenizer.encode(text):
        if token_id not in allowed(matcher):
            return False
        assert matcher.accept(token_id)
    return bool(tokenizer.eos_ids & allowed(matcher))


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


class TestWhatConforms:
    @pytest.mark.parametrize(
        ("text", "fits"),
        [
            ('{"name":"Zoë 東京 👩‍👩‍👧‍👦","age":3}', True),
            ('{"name": "a", "age": -12, "tags": ["x", "y"]}', True),
            ('{\n    "name": "a",\n    "age": 3\n}', True),
            ('{"age": 3, "name": "a"}', False),
            ('{"name": "a"}', False),
            ('{"name": "a", "age": 3.5}', False),
            ('{"name": "a", "age": 3, "extra": 1}', False),
            ('{"name": "a", "age": 3} and more', False),
            ('{\n\n\n\n"name": "a", "age": 3}', False),
            ("{" + " " * 60 + '"name": "a", "age": 3}', False),
            ('{"\\u006eame": "a", "age": 3}', False),
            ("```json\n", False),
        ],
    )
    def test_a_schema(self, factory: ConstraintFactory, tokenizer: Tokenizer, text: str, fits: bool) -> None:
        assert accepts(factory, tokenizer, schema(PERSON), text) is fits

    @pytest.mark.parametrize(
        ("constraint", "good", "bad"),
        [
            (OutputConstraint("json_object", {}), '{"a": [1, {"b": null}]}', "[1]"),
            (OutputConstraint("json_object", {}), "{}", '"text"'),
            (OutputConstraint("regex", r"[a-z]+@[a-z]+\.org"), "me@home.org", "me@home.net"),
            (OutputConstraint("lark", 'start: "yes" | "no"'), "yes", "maybe"),
            (OutputConstraint("gbnf", 'root ::= "yes" | "no" | [0-9]{3}'), "042", "42"),
            (OutputConstraint("gbnf", 'root ::= item+\nitem ::= "- " [^\\n]+ "\\n"'), "- one\n- two\n", "one\n"),
            (schema({"enum": ["red", 3, None]}), "null", '"blue"'),
            (schema({"const": {"format": "x", "properties": [1]}}), '{"format": "x", "properties": [1]}', "{}"),
            (schema({"type": "string", "maxLength": 3}), '"abc"', '"abcd"'),
            (schema({"type": "string", "pattern": "^[A-Z]{2}$"}), '"AB"', '"ABC"'),
            (schema({"type": "string", "format": "date"}), '"2024-02-29"', '"tomorrow"'),
            (schema({"type": "string", "format": "our-own-format"}), '"anything"', "1"),
            (schema({"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}}), "[1]", '["a"]'),
            (schema({"type": "object", "properties": {"c": {"$ref": "#"}}}), '{"c":{"c":{}}}', '{"c":{"c":1}}'),
            (schema({"anyOf": [{"type": "string"}, {"type": "null"}]}), "null", "1"),
            (schema({"$schema": "https://example.org/dialect", "type": "boolean"}), "true", "null"),
        ],
    )
    def test_other_kinds(
        self, factory: ConstraintFactory, tokenizer: Tokenizer, constraint: OutputConstraint, good: str, bad: str
    ) -> None:
        assert accepts(factory, tokenizer, constraint, good)
        assert not accepts(factory, tokenizer, constraint, bad)

    @pytest.mark.parametrize(
        "document",
        [
            PERSON,
            {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 3},
            {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "patternProperties": {"^n_": {"type": "integer"}}},
            {"anyOf": [{"type": "object", "properties": {"k": {"const": "v"}}, "required": ["k"]}, {"type": "boolean"}]},
            {"type": "integer", "minimum": -5, "exclusiveMaximum": 17, "multipleOf": 3},
            {"type": "string", "minLength": 2, "maxLength": 6},
            {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "boolean"}},
            {"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}], "items": False, "minItems": 2},
        ],
    )  # fmt: skip
    def test_random_walks_never_leave_the_schema(
        self, factory: ConstraintFactory, tokenizer: Tokenizer, document: dict[str, Any]
    ) -> None:
        """A model that picks tokens at random, as long as they are allowed, still writes valid instances."""
        for seed in range(12):
            walk = random.Random(seed)
            matcher = factory.compile(schema(document))
            ids: list[int] = []
            for _ in range(400):
                choices = allowed(matcher)
                assert choices, "never a dead end"
                ends = sorted(choices & tokenizer.eos_ids)
                closing = sorted(token_id for token_id in choices if tokenizer.token_bytes(token_id).strip() in _CLOSERS)
                token_id = walk.choice(ends or (closing if closing and walk.random() < 0.7 else sorted(choices)))
                assert matcher.accept(token_id)
                if ends:
                    jsonschema.Draft202012Validator(document).validate(json.loads(tokenizer.decode(ids)))
                    break
                ids.append(token_id)


_CLOSERS = (b'"', b"}", b"]", b'"}', b'"]', b'":')


class TestForcedCalls:
    HERMES = JsonCallShape(open="<tool_call>\n", close="\n</tool_call>", arguments_key="arguments", separator="\n")
    LIST = JsonCallShape(open="<|im_start|>", close="", arguments_key="arguments", is_list=True)
    BARE = JsonCallShape(open="", close="", arguments_key="parameters", separator="; ")
    TOOLS = (
        ToolSpec("get_weather", "d", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}),
        ToolSpec("now", None, {}),
        ToolSpec("empty", None, {"properties": {}}),
    )
    CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Brno"}}\n</tool_call>'

    @pytest.mark.parametrize(
        ("shape", "text"),
        [
            (HERMES, CALL),
            (HERMES, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n' + CALL),
            (HERMES, '<tool_call>\n{"name": "empty", "arguments": {"x": 1}}\n</tool_call>'),
            (LIST, '<|im_start|>[{"name": "now", "arguments": {}}, {"name": "get_weather", "arguments": {"city": "B"}}]'),
            (BARE, '{"name": "now", "parameters": {}}'),
            (BARE, '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}'),
        ],
    )
    def test_calls_in_the_model_s_own_form(
        self, factory: ConstraintFactory, tokenizer: Tokenizer, shape: JsonCallShape, text: str
    ) -> None:
        assert accepts(factory, tokenizer, tool_call_grammar(shape, self.TOOLS, named=False), text)

    @pytest.mark.parametrize(
        "text",
        [
            "Sure!",
            CALL.replace("get_weather", "rm_rf"),
            CALL.replace('{"city": "Brno"}', "{}"),
            CALL.replace('{"city": "Brno"}', '"Brno"'),
            '<tool_call>\n{"name": "now", "arguments": 3}\n</tool_call>',
        ],
    )
    def test_nothing_else(self, factory: ConstraintFactory, tokenizer: Tokenizer, text: str) -> None:
        assert not accepts(factory, tokenizer, tool_call_grammar(self.HERMES, self.TOOLS, named=False), text)

    def test_one_call_when_one_is_named_or_parallel_calls_are_off(
        self, factory: ConstraintFactory, tokenizer: Tokenizer
    ) -> None:
        for options in ({"named": True}, {"named": False, "parallel": False}):
            grammar = tool_call_grammar(self.HERMES, self.TOOLS[:1], **options)
            assert accepts(factory, tokenizer, grammar, self.CALL)
            assert not accepts(factory, tokenizer, grammar, f"{self.CALL}\n{self.CALL}")

    def test_a_marker_is_its_token(self, factory: ConstraintFactory, tokenizer: Tokenizer) -> None:
        for shape, marker in ((self.HERMES, "<tool_call>"), (self.LIST, "<|im_start|>")):
            matcher = factory.compile(tool_call_grammar(shape, self.TOOLS, named=False))
            assert tokenizer.token_id(marker) in allowed(matcher)
        assert allowed(matcher) == {tokenizer.token_id("<|im_start|>")}, "a control token has no other spelling"

    def test_names_are_quoted(self, factory: ConstraintFactory, tokenizer: Tokenizer) -> None:
        tool = ToolSpec('odd"name\\é', None, {})
        grammar = tool_call_grammar(self.BARE, (tool,), named=True)
        name = json.dumps(tool.name, ensure_ascii=False)
        assert accepts(factory, tokenizer, grammar, f'{{"name": {name}, "parameters": {{}}}}')


class TestTheSeam:
    def test_matchers_of_one_grammar_are_independent(self, factory: ConstraintFactory, tokenizer: Tokenizer) -> None:
        first, second = factory.compile(schema(PERSON)), factory.compile(schema(PERSON))
        before = allowed(second)
        for token_id in tokenizer.encode('{"name": "a'):
            assert first.accept(token_id)
        assert allowed(second) == before
        assert allowed(first) != before

    def test_filling_a_mask_changes_nothing(self, factory: ConstraintFactory) -> None:
        matcher = factory.compile(schema(PERSON))
        assert allowed(matcher) == allowed(matcher)

    def test_a_refused_token_is_reported(self, factory: ConstraintFactory, tokenizer: Tokenizer) -> None:
        matcher = factory.compile(schema(PERSON))
        assert not matcher.accept(tokenizer.encode("x")[0])
        assert not matcher.is_finished
        with pytest.raises(GenerationFailed):
            allowed(matcher)

    def test_rollback_takes_rejected_drafts_back(self, factory: ConstraintFactory, tokenizer: Tokenizer) -> None:
        matcher = factory.compile(schema(PERSON))
        ids = tokenizer.encode('{"name": "Anna", "age": 12}')
        for token_id in ids[:3]:
            matcher.accept(token_id)
        at_three = allowed(matcher)
        for token_id in ids[3:]:
            assert matcher.accept(token_id)
        finished = [matcher.is_finished]
        matcher.rollback(len(ids) - 3)
        finished.append(matcher.is_finished)
        assert allowed(matcher) == at_three
        assert finished == [True, False]
        matcher.rollback(0)
        assert allowed(matcher) == at_three

    def test_finished_means_only_the_end_may_follow(self, factory: ConstraintFactory, tokenizer: Tokenizer) -> None:
        matcher = factory.compile(OutputConstraint("lark", 'start: "ab" "c"?'))
        matcher.accept(tokenizer.encode("a")[0])
        matcher.accept(tokenizer.encode("b")[0])
        finished = [matcher.is_finished]
        assert tokenizer.eos_ids < allowed(matcher)
        matcher.accept(tokenizer.encode("c")[0])
        finished.append(matcher.is_finished)
        assert finished == [False, True]
        assert allowed(matcher) == tokenizer.eos_ids

    @pytest.mark.parametrize("rows", [512, 544, 640, 512 + 1000])
    def test_padding_rows_of_the_model_are_never_allowed(self, factory: ConstraintFactory, rows: int) -> None:
        words = (ctypes.c_int32 * (rows // 32 + 1))(*([-1] * (rows // 32 + 1)))
        matcher = factory.compile(schema({"type": "string"}))
        matcher.fill_mask(ctypes.addressof(words), rows // 32)
        assert not any(words[16 : rows // 32])
        assert words[rows // 32] == -1, "no word beyond the given ones is written"

    def test_a_model_with_fewer_rows_than_the_tokenizer(self, factory: ConstraintFactory) -> None:
        words = (ctypes.c_int32 * 16)(*([-1] * 16))
        matcher = factory.compile(schema({"type": "string"}))
        matcher.fill_mask(ctypes.addressof(words), 8)
        assert list(words[8:]) == [-1] * 8
        assert {token_id for token_id in range(256) if words[token_id // 32] >> (token_id % 32) & 1} == {
            token_id for token_id in allowed(matcher) if token_id < 256
        }

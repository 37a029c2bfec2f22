"""Bodies of embedding answers, with one vector an input and with one a token."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import orjson
import pytest

from mlxcel.core.chat import MediaPart, TextPart
from mlxcel.core.vectors import Embeddings, TokensPart, Vector
from mlxcel.wire.llama_server import embeddings as native
from mlxcel.wire.openai import embeddings as openai
from mlxcel.wire.parse import validate
from mlxcel.wire.vectors import to_embed_job

PLAIN = np.array([0.25, -1.5, 3.0], dtype="<f4")
ROWS = np.array([[1, 2], [3, 4], [5, 6]], dtype="<f4")


def vector(numbers: Any) -> Vector:
    return Vector(numbers.tobytes(), numbers.shape)


def written(body: Any) -> Any:
    return orjson.loads(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY))


def request(**fields: Any) -> openai.EmbeddingsRequest:
    return validate(openai.EmbeddingsRequest, {"input": "a", **fields})


def test_floats_keep_their_shape() -> None:
    body = written(openai.render(Embeddings((vector(PLAIN), vector(ROWS)), 7), request(), "m"))
    assert [entry["embedding"] for entry in body["data"]] == [PLAIN.tolist(), ROWS.tolist()]
    assert body["usage"] == {"prompt_tokens": 7, "total_tokens": 7}


def test_base64_tells_the_shape_of_a_matrix_only() -> None:
    result = Embeddings((vector(PLAIN), vector(ROWS)), 7)
    plain, rows = written(openai.render(result, request(encoding_format="base64"), "m"))["data"]
    assert "shape" not in plain
    assert rows["shape"] == [3, 2]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(rows["embedding"]), "<f4").reshape(3, 2), ROWS)


def test_the_native_shape_nests_a_plain_vector_once() -> None:
    body = written(native.render(Embeddings((vector(PLAIN), vector(ROWS)), 7)))
    assert body == [{"index": 0, "embedding": [PLAIN.tolist()]}, {"index": 1, "embedding": ROWS.tolist()}]


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("a", (TextPart("a"),)),
        (["a", "b"], (TextPart("a"), TextPart("b"))),
        ([1, 2], (TokensPart((1, 2)),)),
        ([[1, 2], [3]], (TokensPart((1, 2)), TokensPart((3,)))),
        (["a", [1]], (TextPart("a"), TokensPart((1,)))),
        ([{"type": "text", "text": "a"}], (TextPart("a"),)),
        ([{"type": "image_url", "image_url": {"url": "u"}}], (MediaPart("image", "u"),)),
        ([{"type": "image_url", "image_url": "u"}], (MediaPart("image", "u"),)),
    ],
)
def test_every_form_of_input(given: Any, inputs: tuple[Any, ...]) -> None:
    assert to_embed_job(validate(native.NativeEmbeddingsRequest, {"content": given})).inputs == inputs
    assert to_embed_job(request(input=given, dimensions=4, instruction="i", embd_normalize=1)).norm == 1

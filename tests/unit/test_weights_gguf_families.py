"""Every GGUF architecture: names, shapes and configuration, against what llama.cpp's converter writes.

``gguf_families.json`` lists, for tiny models of each family, the metadata and the tensor directory that converter made of
them, and the configuration and tensor names they were made from.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from transformers import AutoConfig

from mlxcel.runners.weights import open_checkpoint
from mlxcel.runners.weights.gguf.families import FAMILIES

CASES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data" / "gguf_families.json").read_text())
# Fields that these models do not use.
UNUSED = {"falcon_h1": {"mamba_norm_before_gate"}, "falcon-new": {"multi_query"}}


def write_header(path: Path, case: dict[str, Any]) -> Path:
    """A GGUF file with the case's metadata and directory; tensors are zeros unless the case gives their values."""
    metadata = case["metadata"]
    directory = case if "tensors" in case else CASES[case["like"]]
    tensors = {**directory["tensors"], **{name: [len(values)] for name, values in case["values"].items()}}
    writer: Any = GGUFWriter(path, metadata["general.architecture"])
    for key, value in metadata.items():
        if key != "general.architecture":
            write_key(writer, key, value)
    for name, shape in tensors.items():
        writer.add_tensor(name, np.array(case["values"].get(name, np.zeros(shape)), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_key(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, [-math.inf if item == "-inf" else item for item in value])
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def test_every_architecture_has_a_case() -> None:
    covered = {case["metadata"]["general.architecture"] for case in CASES.values()}
    assert set(FAMILIES) - covered == {"qwen35moe", "minimax-m2"}  # kin of qwen35 and of mixtral


@pytest.mark.parametrize("label", CASES)
def test_names_shapes_and_configuration(label: str, tmp_path: Path) -> None:
    case = CASES[label]
    checkpoint = open_checkpoint(write_header(tmp_path / "m.gguf", case))
    names = case["names"] if "names" in case else CASES[case["like"]]["names"]
    assert {name: list(checkpoint.shape(name)) for name in checkpoint.names()} == names
    assert all(list(checkpoint.tensor(name).shape) == names[name] for name in names)
    assert_same_configuration(checkpoint.config, case["config"], UNUSED.get(label, set()))


def assert_same_configuration(made: dict[str, Any], original: dict[str, Any], unused: set[str]) -> None:
    """Equal as transformers reads them, in every field that the file determined."""
    expected = AutoConfig.for_model(**original).to_dict()
    actual = AutoConfig.for_model(**made).to_dict()
    assert actual["model_type"] == expected["model_type"]
    for field in {*made, "per_layer_config"} & {*actual} & {*expected} - unused:
        assert actual[field] == approximately(expected[field]), field


def approximately(value: Any) -> Any:
    """The same structure with every float as near as float32 allows."""
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-6)
    if isinstance(value, list):
        return [approximately(item) for item in value]
    if isinstance(value, dict):
        return {key: approximately(item) for key, item in value.items()}
    return value

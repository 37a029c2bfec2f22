"""The GGUF container: what is read, and what is refused with one line."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxcel.core.errors import StartupError
from mlxcel.runners.weights import open_checkpoint
from mlxcel.runners.weights.gguf.file import GgufFile
from mlxcel.runners.weights.gguf.parts import GgufParts

WEIGHTS = np.arange(64, dtype=np.float32).reshape(2, 32)


def write(path: Path, change: Callable[[GGUFWriter], None] = lambda writer: None) -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_array("llama.flags", [True, False])
    writer.add_token_list(["a", "bé", ""])
    change(writer)
    writer.add_tensor("first.weight", WEIGHTS)
    writer.add_tensor("second.weight", WEIGHTS[0] + 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def refusal(path: Path) -> str:
    with pytest.raises(StartupError) as caught:
        GgufFile(path)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_metadata_and_tensors(tmp_path: Path) -> None:
    file = GgufFile(write(tmp_path / "m.gguf"))
    assert file.metadata["llama.block_count"] == 2
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "bé", ""]
    assert file.tensors["first.weight"].shape == (2, 32)
    assert torch.equal(file.rows(file.tensors["first.weight"]).view(torch.float32), torch.from_numpy(WEIGHTS))
    assert torch.equal(file.rows(file.tensors["second.weight"]).view(torch.float32)[0], torch.from_numpy(WEIGHTS[0] + 1))


def test_tensors_outlive_the_file(tmp_path: Path) -> None:
    file = GgufFile(write(tmp_path / "m.gguf"))
    rows = file.rows(file.tensors["first.weight"])
    file.close()
    assert torch.equal(rows.view(torch.float32), torch.from_numpy(WEIGHTS))


def test_custom_alignment(tmp_path: Path) -> None:
    file = GgufFile(write(tmp_path / "m.gguf", lambda writer: writer.add_custom_alignment(256)))
    assert file.tensors["first.weight"].offset % 256 == 0
    assert torch.equal(file.rows(file.tensors["first.weight"]).view(torch.float32), torch.from_numpy(WEIGHTS))


def test_foreign_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    assert "GGUF" in refusal(path)


@pytest.mark.parametrize("content", [b"", b"GG", b"GGUF", b"GGUF\x03\x00\x00\x00"])
def test_stub_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    refusal(path)


def test_git_lfs_pointer(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "git lfs pull" in refusal(path)


@pytest.mark.parametrize("version", [1, 4, 0x03000000])
def test_unsupported_version(tmp_path: Path, version: int) -> None:
    path = write(tmp_path / "m.gguf")
    content = bytearray(path.read_bytes())
    content[4:8] = struct.pack("<I", version)
    path.write_bytes(content)
    assert "version" in refusal(path)


def test_truncated_data_names_both_sizes(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    content = path.read_bytes()
    path.write_bytes(content[:-40])
    message = refusal(path)
    assert "truncated" in message
    assert str(len(content) - 40) in message


def test_every_cut_of_the_header_is_refused(tmp_path: Path) -> None:
    content = write(tmp_path / "m.gguf").read_bytes()
    header_bytes = GgufFile(tmp_path / "m.gguf").header_bytes
    cut = tmp_path / "cut.gguf"
    for length in range(0, header_bytes, 7):
        cut.write_bytes(content[:length])
        refusal(cut)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 400), value=st.integers(0, 255))
def test_a_damaged_byte_is_read_or_refused(tmp_path: Path, position: int, value: int) -> None:
    original = tmp_path / "m.gguf"
    if not original.exists():
        write(original)
    content = bytearray(original.read_bytes())
    content[position % len(content)] = value
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(content)
    with suppress(StartupError):
        file = GgufFile(damaged)
        for tensor in file.tensors.values():
            file.rows(tensor)


def test_parts_are_one_model(tmp_path: Path) -> None:
    first = write(tmp_path / "m-00001-of-00002.gguf")
    second = GGUFWriter(tmp_path / "m-00002-of-00002.gguf", "llama")
    second.add_tensor("third.weight", WEIGHTS * 2)
    second.write_header_to_file()
    second.write_kv_data_to_file()
    second.write_tensors_to_file()
    second.close()
    parts = GgufParts(first)
    assert set(parts.tensors) == {"first.weight", "second.weight", "third.weight"}
    assert torch.equal(parts.rows(parts.tensors["third.weight"]).view(torch.float32), torch.from_numpy(WEIGHTS * 2))


def test_missing_and_later_parts(tmp_path: Path) -> None:
    first = write(tmp_path / "m-00001-of-00003.gguf")
    with pytest.raises(StartupError, match="lacks 2 of 3 parts, first m-00002-of-00003"):
        GgufParts(first)
    later = write(tmp_path / "m-00002-of-00003.gguf")
    with pytest.raises(StartupError, match="first part, m-00001-of-00003"):
        GgufParts(later)


def test_unknown_architecture(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "whisper")
    writer.add_tensor("x.weight", WEIGHTS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(StartupError, match="architecture 'whisper' is not supported"):
        open_checkpoint(tmp_path / "m.gguf")


def test_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"lacks the (metadata key llama\.|tensor token_embd)"):
        open_checkpoint(write(tmp_path / "m.gguf"))

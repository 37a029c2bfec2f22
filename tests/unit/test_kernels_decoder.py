"""The compiled decoder against a plain float64 decoder, at every level this machine has."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from mlxcel.core.errors import GenerationFailed, StartupError
from mlxcel.runners.generate.batch import RaggedBatch
from mlxcel.runners.generate.decoder.spec import DecoderSpec, spec_from_config
from mlxcel.runners.kernels.decoder import KernelOptions, KvMode, NativeDecoder
from mlxcel.runners.kernels.library import KernelError, Level, load_library
from mlxcel.runners.weights import Checkpoint, QuantisedMatrix

LOADED = load_library()
LEVELS = [] if isinstance(LOADED, str) else LOADED.levels()
pytestmark = pytest.mark.skipif(isinstance(LOADED, str), reason="the kernels were not built")

BLOCKS = 96
SMALL: Mapping[str, Any] = {
    "model_type": "llama",
    "vocab_size": 70,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "untied": {"tie_word_embeddings": False},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one head per group": {"num_attention_heads": 2},
    "seven heads per group": {"num_attention_heads": 7, "num_key_value_heads": 1},
    "heads of 16": {"head_dim": 16},
    "heads of 80": {"head_dim": 80, "num_attention_heads": 2},
    "odd sizes": {"hidden_size": 50, "intermediate_size": 70, "vocab_size": 33},
    "partial rotation": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    "head norms": {"model_type": "qwen3"},
    "qkv biases": {"model_type": "qwen2"},
    "window": {"model_type": "mistral", "sliding_window": 21},
    "layers without positions": {"model_type": "smollm3", "no_rope_layers": [0, 1]},
    "multipliers": {
        "model_type": "granite",
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.2,
        "logits_scaling": 2.0,
    },
    "gelu": {"hidden_act": "gelu"},
    "gelu by tanh": {"hidden_act": "gelu_pytorch_tanh"},
    "squared relu": {"hidden_act": "relu2"},
}


class RandomCheckpoint(Checkpoint):
    """Random weights of a spec; ``quantised`` stores the matrices in groups of 32, 4 bits wide (the embedding 8)."""

    kind = "safetensors"
    path = Path("random")

    def __init__(self, spec: DecoderSpec, *, quantised: bool = False, dtype: torch.dtype = torch.float32) -> None:
        draw = torch.Generator().manual_seed(11)
        self._tensors: dict[str, torch.Tensor] = {}
        self._quantised: dict[str, QuantisedMatrix] = {}
        for name in spec.tensor_names():
            shape = tensor_shape(spec, name)
            scale = 1.0 if name == f"{spec.embedding_name}.weight" else shape[-1] ** -0.5
            tensor = torch.randn(*shape, generator=draw) * scale
            if len(shape) == 1:
                tensor = tensor * 0.1 + (1.0 if "norm" in name else 0.0)
            elif quantised:
                matrix = quantise(tensor, 8 if name.startswith(spec.embedding_name) else 4)
                self._quantised[name] = matrix
                tensor = matrix.dense()
            self._tensors[name] = tensor.to(dtype)

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        return self._tensors[name] if dtype is None else self._tensors[name].to(dtype)

    def quantised(self, name: str) -> QuantisedMatrix | None:
        return self._quantised.get(name)

    def close(self) -> None:
        pass


def tensor_shape(spec: DecoderSpec, name: str) -> tuple[int, ...]:
    part = name.removesuffix(".weight").removesuffix(".bias").rsplit(".", 1)[-1]
    hidden, inner, q, kv = spec.hidden_size, spec.intermediate_size, spec.q_size, spec.kv_size
    matrices = {
        "q_proj": (q, hidden),
        "k_proj": (kv, hidden),
        "v_proj": (kv, hidden),
        "o_proj": (hidden, q),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
        "embed_tokens": (spec.vocab_size, hidden),
        "lm_head": (spec.vocab_size, hidden),
    }
    if part in matrices:
        return matrices[part][:1] if name.endswith(".bias") else matrices[part]
    return (spec.head_dim,) if part in ("q_norm", "k_norm") else (hidden,)


def quantise(tensor: torch.Tensor, bits: int, group: int = 32) -> QuantisedMatrix:
    grouped = tensor.view(len(tensor), -1, group)
    low, high = grouped.amin(-1), grouped.amax(-1)
    scales, minimums = ((high - low) / ((1 << bits) - 1)).half().float(), low.half().float()
    codes = ((grouped - minimums[..., None]) / scales[..., None]).round().clamp(0, (1 << bits) - 1)
    return QuantisedMatrix(bits, group, codes.to(torch.uint8).view(tensor.shape), scales, minimums)


class Reference:
    """The block of ``spec.py`` over one whole sequence in float64."""

    def __init__(self, spec: DecoderSpec, checkpoint: Checkpoint) -> None:
        self._spec = spec
        self._weights = {name: checkpoint.tensor(name).double() for name in checkpoint.names()}

    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """[tokens, vocab]"""
        spec = self._spec
        x = self._weights[f"{spec.embedding_name}.weight"][list(token_ids)] * spec.embedding_multiplier
        for layer in range(spec.layer_count):
            names = spec.layer_names(layer)
            x = x + spec.residual_multiplier * self._attention(layer, self._norm(x, names.input_norm))
            y = self._norm(x, names.mlp_norm)
            gated = self._activation(self._linear(y, names.gate)) * self._linear(y, names.up)
            x = x + spec.residual_multiplier * self._linear(gated, names.down)
        return self._linear(self._norm(x, spec.final_norm_name), spec.head_name) * spec.logit_multiplier

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self._weights[f"{name}.weight"]
        return F.rms_norm(x, (x.shape[-1],), weight, self._spec.norm_eps)

    def _activation(self, x: torch.Tensor) -> torch.Tensor:
        match self._spec.activation:
            case "silu":
                return F.silu(x)
            case "relu2":
                return F.relu(x).square()
            case kind:
                return F.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")

    def _attention(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        spec, names, count = self._spec, self._spec.layer_names(layer), len(x)
        q = self._linear(x, names.q).view(count, -1, spec.head_dim)
        k = self._linear(x, names.k).view(count, -1, spec.head_dim)
        v = self._linear(x, names.v).view(count, -1, spec.head_dim)
        if spec.qk_norm:
            q, k = self._norm(q, names.q_norm), self._norm(k, names.k_norm)
        if spec.rope_layers[layer]:
            q, k = self._rotate(q), self._rotate(k)
        k, v = (part.repeat_interleave(spec.group_size, dim=1) for part in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * spec.attention_scale
        distance = torch.arange(count)[:, None] - torch.arange(count)[None, :]
        seen = distance >= 0
        if spec.windows[layer]:
            seen &= distance < spec.windows[layer]
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return self._linear(torch.einsum("hqk,khd->qhd", weights, v).flatten(1), names.o)

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        cosines, sines = (torch.from_numpy(table).double()[:, None] for table in self._spec.rope.tables(len(x)))
        half = cosines.shape[-1]
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat((a * cosines - b * sines, b * cosines + a * sines, rest), dim=-1)


def spec_of(variant: str) -> DecoderSpec:
    spec = spec_from_config(copy.deepcopy(dict(SMALL) | dict(VARIANTS[variant])))
    assert spec is not None
    return spec


def decoder(spec: DecoderSpec, checkpoint: Checkpoint, level: Level, mode: KvMode = "fp32", **options: Any) -> NativeDecoder:
    assert not isinstance(LOADED, str)
    chosen = {"threads": 2, "k_mode": mode, "v_mode": mode} | options
    return NativeDecoder(LOADED, spec, checkpoint, KernelOptions(level, BLOCKS, **chosen))


def tokens(count: int, seed: int, vocab_size: int = 33) -> list[int]:
    ids: list[int] = torch.randint(0, vocab_size, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return ids


def blocks_for(count: int, row: int) -> list[int]:
    """Blocks of one of three rows, scattered over the pool."""
    order: list[int] = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(3)).tolist()
    return order[row::3][: -(-count // 16)]


def batch(
    rows: Sequence[tuple[Sequence[int], int, Sequence[int]]],
    outputs: Sequence[int] | None = None,
    adapters: tuple[tuple[tuple[int, float], ...], ...] = (),
) -> RaggedBatch:
    """Rows of (tokens, first position, blocks)."""
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row[0]))
    width = max(len(row[2]) for row in rows)

    def int32(values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    return RaggedBatch(
        token_ids=int32([token for row in rows for token in row[0]]),
        positions=int32([row[1] + i for row in rows for i in range(len(row[0]))]),
        row_starts=int32(starts),
        context_lens=int32([row[1] + len(row[0]) for row in rows]),
        block_tables=int32([[*row[2], *[0] * (width - len(row[2]))] for row in rows]),
        logit_indices=int32(list(range(starts[-1])) if outputs is None else list(outputs)),
        row_adapters=adapters,
    )


def error(logits: torch.Tensor, expected: torch.Tensor) -> float:
    return float((logits.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_mixed_steps_equal_the_reference(level: Level, variant: str) -> None:
    """Prompt pieces, decode rows and drafts in one batch, block tables in any order, in fp32 throughout."""
    spec = spec_of(variant)
    checkpoint = RandomCheckpoint(spec)
    tested, reference = decoder(spec, checkpoint, level, exact=True), Reference(spec, checkpoint)
    a, b, c = tokens(60, 1), tokens(35, 2), tokens(40, 3)
    tables = [blocks_for(64, row) for row in range(3)]
    first = tested.forward(batch([(a[:59], 0, tables[0]), (b[:9], 0, tables[1])])).clone()
    assert error(first, torch.cat((reference.logits(a[:59]), reference.logits(b[:9])))) < 5e-6
    second = tested.forward(batch([(a[59:], 59, tables[0]), (b[9:], 9, tables[1]), (c[:3], 0, tables[2])]))
    expected = torch.cat((reference.logits(a)[59:], reference.logits(b)[9:], reference.logits(c[:3])))
    assert error(second, expected) < 5e-6


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("variant", ["plain", "window"])
def test_long_rows_cross_parts_and_passes(level: Level, variant: str) -> None:
    """A prompt longer than one pass, then decoding over a context attended in parts."""
    spec = spec_of(variant)
    checkpoint = RandomCheckpoint(spec)
    tested, reference = decoder(spec, checkpoint, level, exact=True), Reference(spec, checkpoint)
    ids, table = tokens(560, 4), list(range(40))
    expected = reference.logits(ids)
    prompt = tested.forward(batch([(ids[:540], 0, table)], outputs=[0, 300, 511, 512, 539])).clone()
    assert error(prompt, expected[[0, 300, 511, 512, 539]]) < 5e-6
    for position in (540, 541):
        step = tested.forward(batch([(ids[position : position + 1], position, table)]))
        assert error(step, expected[position : position + 1]) < 5e-6
    rest = tested.forward(batch([(ids[542:548], 542, table)]))
    assert error(rest, expected[542:548]) < 5e-6


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("mode", "limit"), [("fp32", 0.03), ("bf16", 0.03), ("int8", 0.03)])
def test_quantised_weights_and_caches_stay_near_the_reference(level: Level, mode: KvMode, limit: float) -> None:
    spec = spec_of("plain")
    checkpoint = RandomCheckpoint(spec, quantised=True)
    tested, reference = decoder(spec, checkpoint, level, mode), Reference(spec, checkpoint)
    ids, table = tokens(300, 5), list(range(95, 60, -1))
    expected = reference.logits(ids)
    assert error(tested.forward(batch([(ids[:290], 0, table)])), expected[:290]) < limit
    for position in range(290, 300):
        step = tested.forward(batch([(ids[position : position + 1], position, table)]))
        assert error(step, expected[position : position + 1]) < limit


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_checkpoints(level: Level, dtype: torch.dtype) -> None:
    spec = spec_of("plain")
    checkpoint = RandomCheckpoint(spec, dtype=dtype)
    tested, reference = decoder(spec, checkpoint, level, "bf16"), Reference(spec, checkpoint)
    ids = tokens(40, 6)
    expected = reference.logits(ids)
    assert error(tested.forward(batch([(ids[:36], 0, [4, 2, 7])])), expected[:36]) < 0.02
    assert error(tested.forward(batch([(ids[36:], 36, [4, 2, 7])])), expected[36:]) < 0.02


@pytest.mark.parametrize("level", LEVELS)
def test_exact_arithmetic_decodes_quantised_weights(level: Level) -> None:
    spec = spec_of("plain")
    checkpoint = RandomCheckpoint(spec, quantised=True)
    tested, reference = decoder(spec, checkpoint, level, exact=True), Reference(spec, checkpoint)
    ids = tokens(30, 7)
    assert error(tested.forward(batch([(ids, 0, [1, 2])])), reference.logits(ids)) < 5e-6


@pytest.mark.parametrize("level", LEVELS)
def test_greedy_tokens_equal_the_reference(level: Level) -> None:
    spec = spec_of("plain")
    checkpoint = RandomCheckpoint(spec)
    tested, reference = decoder(spec, checkpoint, level, exact=True), Reference(spec, checkpoint)
    prompt = tokens(20, 8)
    generated: list[int] = []
    logits = tested.forward(batch([(prompt, 0, [5, 6, 7, 8])], outputs=[19]))
    for position in range(20, 50):
        generated.append(int(logits.argmax()))
        logits = tested.forward(batch([(generated[-1:], position, [5, 6, 7, 8])]))
    expected = reference.logits([*prompt, *generated])
    assert generated == expected[19:-1].argmax(-1).tolist()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("context", [40, 600])
def test_a_draft_is_scored_bit_by_bit_like_plain_decoding(level: Level, context: int) -> None:
    spec = spec_of("plain")
    tested = decoder(spec, RandomCheckpoint(spec, quantised=True), level, "bf16")
    ids, table, other = tokens(context + 6, 9), list(range(40)), list(range(40, 80))
    plain = []
    for blocks in (table, other):
        tested.forward(batch([(ids[:context], 0, blocks)], outputs=[]))
    for position in range(context, context + 6):
        plain.append(tested.forward(batch([(ids[position : position + 1], position, table)])).clone())
    drafted = tested.forward(batch([(ids[context:], context, other)]))
    assert torch.equal(drafted, torch.cat(plain))


@pytest.mark.parametrize("level", LEVELS)
def test_a_row_does_not_depend_on_its_neighbours_or_the_threads(level: Level) -> None:
    spec = spec_of("plain")
    checkpoint = RandomCheckpoint(spec, quantised=True)
    ids = [tokens(30, seed) for seed in range(3)]
    tables = [blocks_for(32, row) for row in range(3)]
    results = []
    for threads in (1, 3):
        tested = decoder(spec, checkpoint, level, "bf16", threads=threads)
        for row in range(3):
            tested.forward(batch([(ids[row][:10], 0, tables[row])], outputs=[]))
        results.append(tested.forward(batch([(ids[row][10:11], 10, tables[row]) for row in range(3)])).clone())
    assert torch.equal(results[0], results[1])
    alone = decoder(spec, checkpoint, level, "bf16")
    alone.forward(batch([(ids[1][:10], 0, tables[1])], outputs=[]))
    assert torch.equal(alone.forward(batch([(ids[1][10:11], 10, tables[1])])), results[0][1:2])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", ["fp32", "bf16"])
def test_what_others_left_in_a_block_is_never_read(level: Level, mode: KvMode) -> None:
    """A recycled block may hold anything, also numbers that are none."""
    spec = spec_of("plain")
    tested = decoder(spec, RandomCheckpoint(spec), level, mode)
    ids = tokens(45, 10)
    steps = [(ids[:21], 0, [8, 9, 10]), (ids[21:22], 21, [8, 9, 10]), (ids[22:45], 22, [8, 9, 10])]
    clean = [tested.forward(batch([step])).clone() for step in steps]
    for block in (8, 9, 10):
        tested.import_block(block, b"\xff" * len(tested.export_block(block)))
    assert all(torch.equal(tested.forward(batch([step])), before) for step, before in zip(steps, clean, strict=True))


class MergedCheckpoint(RandomCheckpoint):
    """A checkpoint with adapters added to its matrices."""

    def merge(self, updates: Mapping[str, tuple[torch.Tensor, torch.Tensor]], scale: float) -> None:
        for name, (down, up) in updates.items():
            self._tensors[f"{name}.weight"] = self._tensors[f"{name}.weight"] + scale * up @ down


def random_adapter(
    spec: DecoderSpec, seed: int, rank: int, parts: Sequence[str]
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    updates = {}
    for name in spec.tensor_names():
        if name.removesuffix(".weight").endswith(tuple(parts)):
            out_features, in_features = tensor_shape(spec, name)
            down, up = torch.randn(rank, in_features, generator=draw), torch.randn(out_features, rank, generator=draw)
            updates[name.removesuffix(".weight")] = (down * in_features**-0.5, up * 0.3)
    return updates


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("variant", ["plain", "odd sizes"])
def test_rows_of_one_batch_use_adapters_at_their_own_scales(level: Level, variant: str) -> None:
    spec = spec_of(variant)
    adapters = [
        random_adapter(spec, 20, 4, ("q_proj", "v_proj", "down_proj")),
        random_adapter(spec, 21, 3, ("q_proj", "k_proj", "o_proj", "gate_proj", "up_proj")),
    ]
    tested = decoder(spec, RandomCheckpoint(spec), level, exact=True)
    assert [tested.add_adapter(updates) for updates in adapters] == [0, 1]
    uses: tuple[tuple[tuple[int, float], ...], ...] = (((0, 1.0), (1, -0.5)), (), ((1, 2.0),))
    ids, tables = [tokens(24, seed) for seed in range(3)], [blocks_for(32, row) for row in range(3)]
    steps = [tested.forward(batch([(ids[r][:20], 0, tables[r]) for r in range(3)], [19, 59], uses)).clone()]
    steps += [tested.forward(batch([(ids[r][20:21], 20, tables[r]) for r in range(3)], adapters=uses)).clone()]
    for row, use in enumerate(uses):
        merged = MergedCheckpoint(spec)
        for adapter, scale in use:
            merged.merge(adapters[adapter], scale)
        expected = Reference(spec, merged).logits(ids[row])
        assert error(steps[1][row : row + 1], expected[20:21]) < 5e-6
        if row != 1:
            assert error(steps[0][row // 2], expected[19]) < 5e-6


def test_adapters_that_do_not_fit_are_refused_whole() -> None:
    spec = spec_of("plain")
    tested = decoder(spec, RandomCheckpoint(spec), LEVELS[-1])
    good = random_adapter(spec, 22, 2, ("v_proj",))
    name = next(iter(good))
    down, up = good[name]
    for bad, message in (
        ({"lm_head": (down, up)}, "lm_head, which is not a projection"),
        ({name.replace("v_proj", "q_proj"): (down, up)}, "does not fit a matrix of 192 x 64"),
        ({name: (down[:1], up)}, "does not fit"),
    ):
        with pytest.raises(StartupError, match=message):
            tested.add_adapter(good | bad)
    assert tested.add_adapter(good) == 0


def test_blocks_move_as_bytes_between_decoders_and_levels() -> None:
    spec = spec_of("plain")
    checkpoint = RandomCheckpoint(spec, quantised=True)
    source, target = decoder(spec, checkpoint, LEVELS[0], "int8"), decoder(spec, checkpoint, LEVELS[0], "int8")
    ids = tokens(33, 12)
    source.forward(batch([(ids[:32], 0, [3, 4])], outputs=[]))
    expected = source.forward(batch([(ids[32:], 32, [3, 4, 5])])).clone()
    for old, new in ((3, 50), (4, 20)):
        target.import_block(new, source.export_block(old))
    assert torch.equal(target.forward(batch([(ids[32:], 32, [50, 20, 6])])), expected)
    assert len(source.export_block(3)) == 16 * source.bytes_per_token
    for bad in (b"", bytes(16 * source.bytes_per_token + 1)):
        with pytest.raises(ValueError, match="a KV block has"):
            target.import_block(0, bad)
    with pytest.raises(ValueError, match="no block 96"):
        target.export_block(BLOCKS)


def test_torch_gets_one_thread_where_the_decoder_runs_and_keeps_its_own_elsewhere() -> None:
    """Its threads poll after an operation, which would take the processors from the next step."""
    spec = spec_of("plain")
    tested = decoder(spec, RandomCheckpoint(spec), LEVELS[-1])
    seen: list[int] = []

    def own() -> None:
        tested.forward(batch([([1], 0, [0])]))
        seen.append(torch.get_num_threads())

    def another() -> None:
        seen.append(torch.get_num_threads())

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for body in (own, another):
            thread = threading.Thread(target=body)
            thread.start()
            thread.join()
        assert seen == [1, 2]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_batches_that_do_not_fit_are_refused() -> None:
    spec = spec_of("plain")
    tested = decoder(spec, RandomCheckpoint(spec), LEVELS[-1])
    for rows, outputs, message in (
        ([([70], 0, [0])], [0], "outside the vocabulary"),
        ([([-1], 0, [0])], [0], "outside the vocabulary"),
        ([([1], 16, [0])], [0], "block table"),
        ([([1], 0, [BLOCKS])], [0], "outside the KV pool"),
        ([([1], 0, [0])], [1], "outside the batch"),
        ([([1, 2], 0, [0])], [1, 0], "ascend"),
        ([([1], 0, [0]), ([], 1, [0])], [0], "empty"),
    ):
        with pytest.raises(GenerationFailed, match=message):
            tested.forward(batch(rows, outputs))


def test_models_that_do_not_fit_are_refused() -> None:
    spec = spec_from_config(dict(SMALL) | {"head_dim": 24})
    assert spec is not None
    with pytest.raises(KernelError, match="multiple of 16"):
        decoder(spec, RandomCheckpoint(spec), LEVELS[-1])

"""The native decoder in plain torch: any :class:`DecoderSpec` on CPU, CUDA or MPS."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from mlxcel.runners.generate.batch import RaggedBatch
from mlxcel.runners.generate.decoder.attention import PagedKeysValues, RaggedLayout, Scoring, WindowRule
from mlxcel.runners.generate.decoder.linear import Linear, LinearLoader
from mlxcel.runners.generate.decoder.spec import Activation, DecoderSpec
from mlxcel.runners.generate.decoder.transfer import export_block, import_block
from mlxcel.runners.generate.lora.bank import AdapterBank
from mlxcel.runners.generate.lora.files import Adapter

if TYPE_CHECKING:
    from mlxcel.runners.weights import Checkpoint


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def _relu2(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x).square()


_ACTIVATIONS: Mapping[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu2": _relu2,
}


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    rotates: bool
    cache: PagedKeysValues
    scoring: Scoring


class TorchDecoder:
    """Implements :class:`~mlxcel.runners.generate.batch.Decoder`.

    Args:
        spec: the model.
        checkpoint: its weights.
        dtype: compute and KV dtype. float32 follows transformers' arithmetic; bfloat16 on the CPU uses packed 4-bit weights
            where the checkpoint has them.
        device: where weights and KV live.
        context_tokens: longest row.
        block_tokens, block_count: shape of the KV pool.
        adapters: LoRA adapters, by the ids that batches give.

    Raises:
        StartupError: an adapter does not fit the model.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        device: torch.device,
        context_tokens: int,
        block_tokens: int,
        block_count: int,
        adapters: Sequence[Adapter] = (),
    ) -> None:
        self.vocab_size = spec.vocab_size
        self.block_tokens = block_tokens
        self.block_count = block_count
        self.bytes_per_token = spec.kv_bytes_per_token(dtype.itemsize)
        self._spec = spec
        self._dtype = dtype
        self._device = device
        self._activation = _ACTIVATIONS[spec.activation]
        self._bank = AdapterBank(adapters, dtype, device)
        loader = LinearLoader(checkpoint, dtype, device, self._bank)
        self._embedding = loader.dense(f"{spec.embedding_name}.weight")
        self._layers = [self._load_layer(loader, index) for index in range(spec.layer_count)]
        self._caches = [layer.cache for layer in self._layers]
        self._final_norm = loader.vector(f"{spec.final_norm_name}.weight")
        self._head = loader.head(spec.head_name, self._embedding if spec.tied else None)
        self._bank.check_claimed()
        cosines, sines = spec.rope.tables(-(-context_tokens // block_tokens) * block_tokens)
        self._cosines, self._sines = torch.from_numpy(cosines).to(device), torch.from_numpy(sines).to(device)

    def _load_layer(self, loader: LinearLoader, index: int) -> _Layer:
        spec, names = self._spec, self._spec.layer_names(index)
        blocks = (self.block_count, self.block_tokens)
        window = spec.windows[index]
        return _Layer(
            input_norm=loader.vector(f"{names.input_norm}.weight"),
            qkv=loader.linear((names.q, names.k, names.v), biased=spec.qkv_bias),
            q_norm=loader.vector(f"{names.q_norm}.weight") if spec.qk_norm else None,
            k_norm=loader.vector(f"{names.k_norm}.weight") if spec.qk_norm else None,
            o=loader.linear((names.o,), biased=spec.o_bias),
            mlp_norm=loader.vector(f"{names.mlp_norm}.weight"),
            gate_up=loader.linear((names.gate, names.up), biased=spec.mlp_bias),
            down=loader.linear((names.down,), biased=spec.mlp_bias),
            rotates=spec.rope_layers[index],
            cache=PagedKeysValues(blocks, spec.kv_head_count, (spec.head_dim, spec.head_dim), self._dtype, self._device),
            scoring=Scoring(spec.attention_scale, WindowRule(window) if window else None),
        )

    @torch.inference_mode()
    def forward(self, batch: RaggedBatch) -> torch.Tensor:
        """See :meth:`Decoder.forward <mlxcel.runners.generate.batch.Decoder.forward>`."""
        spec = self._spec
        self._bank.begin(batch)
        layout = RaggedLayout(batch, self.block_tokens, self._dtype, self._device)
        positions = batch.positions.to(self._device)
        rotation = (self._cosines[positions][:, None, :], self._sines[positions][:, None, :])
        hidden = F.embedding(batch.token_ids.to(self._device), self._embedding)
        if spec.embedding_multiplier != 1.0:
            hidden = hidden * spec.embedding_multiplier
        for layer in self._layers:
            attended = layer.o(self._attention(layer, self._norm(hidden, layer.input_norm), rotation, layout))
            hidden = self._add(hidden, attended)
            gate, up = layer.gate_up(self._norm(hidden, layer.mlp_norm)).chunk(2, dim=-1)
            hidden = self._add(hidden, layer.down(self._activation(gate) * up))
        wanted = hidden if len(batch.logit_indices) == len(hidden) else hidden[batch.logit_indices.to(self._device)]
        logits = self._head(self._norm(wanted, self._final_norm)).float()
        return logits if spec.logit_multiplier == 1.0 else logits * spec.logit_multiplier

    def export_block(self, block: int) -> bytes:
        """See :class:`~mlxcel.core.ports.BlockTransfer`."""
        return export_block(self._caches, block)

    def import_block(self, block: int, data: bytes) -> None:
        """See :class:`~mlxcel.core.ports.BlockTransfer`."""
        import_block(self._caches, block, data)

    def _attention(
        self,
        layer: _Layer,
        x: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        layout: RaggedLayout,
    ) -> torch.Tensor:
        spec = self._spec
        fused = layer.qkv(x).view(len(x), -1, spec.head_dim)
        queries, keys, values = torch.split(fused, [spec.head_count, spec.kv_head_count, spec.kv_head_count], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            queries = F.rms_norm(queries, (spec.head_dim,), layer.q_norm, spec.norm_eps)
            keys = F.rms_norm(keys, (spec.head_dim,), layer.k_norm, spec.norm_eps)
        if layer.rotates:
            queries, keys = _rotate(queries, rotation), _rotate(keys, rotation)
        layer.cache.append(layout.slots, keys, values)
        return layout.attend(queries, layer.cache, layer.scoring)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self._spec.norm_eps)

    def _add(self, residual: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        multiplier = self._spec.residual_multiplier
        return residual + output if multiplier == 1.0 else residual + output * multiplier


def _rotate(x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotate [tokens, heads, head_dim] by tables [tokens, 1, rotary_dim / 2]; computed in float32, returned in x's dtype."""
    cosines, sines = rotation
    half = cosines.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    parts = [first * cosines - second * sines, second * cosines + first * sines]
    rotated = torch.cat(parts, dim=-1).to(x.dtype)
    return rotated if x.shape[-1] == 2 * half else torch.cat((rotated, x[..., 2 * half :]), dim=-1)

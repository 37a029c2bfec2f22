"""Which rows of a family's tensors llama.cpp's converter has moved."""

from __future__ import annotations

from collections.abc import Mapping

from mlxcel.runners.weights.gguf.config import head_dim
from mlxcel.runners.weights.gguf.metadata import Metadata
from mlxcel.runners.weights.gguf.recipes import Order, grouped_qkv, grouped_qkvz, unpermuted, untiled


def as_stored(metadata: Metadata) -> Mapping[str, Order]:
    return {}


def rotary_pairs(metadata: Metadata) -> Mapping[str, Order]:
    order = unpermuted(head_dim(metadata))
    return {"attn_q": order, "attn_k": order}


def fused_by_head(metadata: Metadata) -> Mapping[str, Order]:
    heads = metadata.need("attention.head_count")
    return {"attn_qkv": grouped_qkv(heads, metadata.get("attention.head_count_kv", heads))}


def delta_net_groups(metadata: Metadata) -> Mapping[str, Order]:
    """Qwen3-Next: one projection per layer, group by group."""
    groups = metadata.need("ssm.group_count")
    key_rows = groups * metadata.need("ssm.state_size")
    return {"linear_attn.in_proj_qkvz.weight": grouped_qkvz(groups, key_rows, metadata.need("ssm.inner_size"))}


def delta_net_heads(metadata: Metadata) -> Mapping[str, Order]:
    """Qwen3.5: everything that has one entry per value head."""
    groups, heads = metadata.need("ssm.group_count"), metadata.need("ssm.time_step_rank")
    size = metadata.need("ssm.inner_size") // heads
    first_value_row = 2 * groups * metadata.need("ssm.state_size")
    channels = untiled(groups, size, first_value_row)
    per_head = untiled(groups, 1)
    orders = dict.fromkeys(("ssm_alpha", "ssm_beta", "ssm_a", "ssm_dt.bias"), per_head)
    return orders | {"attn_qkv": channels, "ssm_conv1d": channels, "attn_gate": untiled(groups, size)}


def delta_net_columns(metadata: Metadata) -> Mapping[str, Order]:
    heads = metadata.need("ssm.time_step_rank")
    return {"ssm_out": untiled(metadata.need("ssm.group_count"), metadata.need("ssm.inner_size") // heads)}

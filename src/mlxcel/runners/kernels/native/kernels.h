// The kernel table of a level, from the headers above compiled with that level's vectors.
#pragma once

#include "layout.h"
#include "elementwise.h"
#include "linear.h"
#include "attention.h"

namespace {

void no_panel(const mlx::Matrix&, const mlx::Slice&, uint16_t*) {}
void nothing() {}

void linear_without_tiles(const Matrix& m, int, const Operand& x, int row_begin, int row_end, const mlx::Slice& slice,
                          const uint16_t*, float* out, long out_stride) {
  linear(m, x, row_begin, row_end, slice.block_begin, slice.block_end, out, out_stride);
}

constexpr mlx::Kernels base_kernels() {
  mlx::Kernels table = {};
  table.operand_form = operand_form;
  table.prepare = prepare;
  table.load_panel = no_panel;
  table.linear = linear_without_tiles;
  table.add = add_rows;
  table.shrink = shrink;
  table.expand = expand;
  table.gate = gate;
  table.embed = embed;
  table.query_head = query_head;
  table.key_head = key_head;
  table.value_head = value_head;
  table.attend = attend;
  table.merge = merge;
  table.begin = nothing;
  table.end = nothing;
  return table;
}

}  // namespace

// A product of all rows of an operand with some blocks of one or two matrices, in pieces that suit the caches.
#pragma once

#include <algorithm>

#include "layout.h"
#include "memory.h"

namespace mlx {

constexpr int kMaxFactors = 2;

// A member's memory for products.
struct ProductMemory {
  Buffer<float> sums[kMaxFactors];
  Buffer<uint16_t> panels[kMaxFactors];
};

// Calls finish(row, count, sums, stride) for tiles of up to kTileRows rows, in order: sums[i] are the `count` rows of the
// product with matrices[i], `stride` floats apart.
//
// Without tiles of bf16 a tile of rows is finished at once. With them the weights are decoded first, kPanelUnits of their
// inputs at a time, so that a task's share stays in the second-level cache while all rows pass by; deeper matrices therefore
// keep the sums of all rows until the last inputs are in.
template <class Finish>
void multiply(const Kernels& kernels, std::initializer_list<const Matrix*> matrices, const Operand& x, int rows, int block_begin,
              int block_end, ProductMemory& memory, Finish finish) {
  constexpr int kPanelUnits = 64;
  const int blocks = block_end - block_begin, stride = blocks * kBlock, units = (*matrices.begin())->padded_in / kUnit;
  int forms[kMaxFactors], tiles = 0, factor = 0;
  for (const Matrix* matrix : matrices) {
    forms[factor] = kernels.operand_form(*matrix, rows);
    tiles |= forms[factor++] & kFormTiles;
  }
  const int depth = tiles ? std::min(units, kPanelUnits) : units;
  const int span = depth < units ? (rows + kTileRows - 1) / kTileRows * kTileRows : kTileRows;
  float* sums[kMaxFactors];
  for (int i = 0; i < factor; i++) sums[i] = memory.sums[i].reserve((size_t)span * stride);
  for (int first = 0; first < rows; first += span) {
    const int last = std::min(first + span, rows);
    for (int unit = 0; unit < units; unit += depth) {
      const Slice slice = {block_begin, block_end, unit, std::min(unit + depth, units)};
      factor = 0;
      for (const Matrix* matrix : matrices) {
        const bool decodes = forms[factor] & kFormTiles;
        uint16_t* panel = decodes ? memory.panels[factor].reserve((size_t)blocks * depth * kBlock * kUnit) : nullptr;
        if (decodes && (first == 0 || depth < units)) kernels.load_panel(*matrix, slice, panel);
        for (int row = first; row < last; row += kTileRows)
          kernels.linear(*matrix, forms[factor], x, row, std::min(row + kTileRows, last), slice, panel,
                         sums[factor] + (size_t)(row - first) * stride, stride);
        factor++;
      }
    }
    for (int row = first; row < last; row += kTileRows) {
      float* finished[kMaxFactors];
      for (int i = 0; i < factor; i++) finished[i] = sums[i] + (size_t)(row - first) * stride;
      finish(row, std::min(kTileRows, last - row), finished, stride);
    }
  }
}

}  // namespace mlx

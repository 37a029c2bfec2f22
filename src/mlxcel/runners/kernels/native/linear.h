// Matrix products of few to many rows with packed weights. Included once per level, after its simd header.
//
// Every output is summed over the inputs in one fixed order by one accumulator, whatever the number of rows or the tile
// shape: a row's result does not depend on the rows beside it.
#pragma once

#include "layout.h"

namespace {

using mlx::kBlock;
using mlx::kStrip;
using mlx::kUnit;
using mlx::Matrix;
using mlx::Operand;

constexpr int kSteps = kUnit / 4;
constexpr int kStepBytes = kBlock * 4;

template <bool kHalfScales>
constexpr size_t kScaleBytes = kBlock * (kHalfScales ? 2 : 4);

template <bool kHalfScales>
inline F load_scales(const uint8_t* p, int lane) {
  if constexpr (kHalfScales) {
    return load_half((const uint16_t*)p + lane);
  } else {
    return load((const float*)p + lane);
  }
}

// Weights are read once, in order: asking for them this far ahead, into the second-level cache, keeps enough requests in
// flight to run at memory speed, which the hardware's own prefetching does not.
constexpr int kPrefetchBytes = 8192;

inline void prefetch_ahead(const uint8_t* p, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + kPrefetchBytes + i, 0, 2);
}

// int8 activations x affine codes for kRows rows of a strip. kSplit: groups of 16, two scale pairs a unit.
template <int kBits, bool kSplit, bool kHalfScales, int kRows>
void affine_rows(const Matrix& m, const Operand& x, int row, int block, float* out, long out_stride) {
  const int units = m.padded_in / kUnit;
  const int record_units = kSplit ? 1 : m.group / kUnit;
  constexpr size_t scale_bytes = kScaleBytes<kHalfScales>, record_bytes = (kSplit ? 4 : 2) * scale_bytes;
  constexpr size_t unit_bytes = kBits == 4 ? kUnit * kBlock / 2 : kUnit * kBlock;
  const size_t strip = (size_t)(row / kStrip) * units;
  const bool fetches = row == 0;  // later rows find the weights in the cache
  for (int lane = 0; lane < kBlock; lane += L) {
    const uint8_t* p = m.data + block * m.block_bytes;
    const int8_t* codes = x.codes + (strip * kStrip + row % kStrip) * kUnit;
    const float* scales = x.scales + strip * kStrip + row % kStrip;
    const float* sums = kSplit ? x.half_sums + 2 * strip * kStrip + row % kStrip : x.sums + strip * kStrip + row % kStrip;
    F total[kRows];
    for (int r = 0; r < kRows; r++) total[r] = zero();
    for (int record = 0; record < units; record += record_units) {
      const F scale = load_scales<kHalfScales>(p, lane), minimum = load_scales<kHalfScales>(p + scale_bytes, lane);
      F scale2 = zero(), minimum2 = zero();
      if constexpr (kSplit) {
        scale2 = load_scales<kHalfScales>(p + 2 * scale_bytes, lane);
        minimum2 = load_scales<kHalfScales>(p + 3 * scale_bytes, lane);
      }
      if (fetches && lane == 0) prefetch_ahead(p, record_bytes);
      p += record_bytes;
      for (int unit = 0; unit < record_units; unit++) {
        // Rows inside steps: the rows' sums are independent chains. `second` sums the other group of a split unit.
        I first[kRows], second[kSplit ? kRows : 1];
        for (int r = 0; r < kRows; r++) first[r] = no_dots();
        if constexpr (kSplit)
          for (int r = 0; r < kRows; r++) second[r] = no_dots();
        if (fetches && lane == 0) prefetch_ahead(p, unit_bytes);
#pragma GCC unroll 4
        for (int s = 0; s < kSteps / 2; s++) {
          C low, high;
          if constexpr (kBits == 4) {
            const C both = load_codes(p + s * kStepBytes + lane * 4);
            low = low_nibbles(both);
            high = high_nibbles(both);
          } else {
            low = load_codes(p + s * kStepBytes + lane * 4);
            high = load_codes(p + (s + kSteps / 2) * kStepBytes + lane * 4);
          }
#pragma GCC unroll 8
          for (int r = 0; r < kRows; r++) first[r] = dot4<kBits == 8>(first[r], low, codes + r * kUnit + 4 * s);
          I* upper = kSplit ? second : first;
#pragma GCC unroll 8
          for (int r = 0; r < kRows; r++) upper[r] = dot4<kBits == 8>(upper[r], high, codes + r * kUnit + kUnit / 2 + 4 * s);
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; r++) {
          const F activation_scale = splat(scales[r]);
          total[r] = fma(to_float(finish_dots<kBits == 8>(first[r])), mul(scale, activation_scale), total[r]);
          total[r] = fma(minimum, splat(sums[r]), total[r]);
          if constexpr (kSplit) {
            total[r] = fma(to_float(finish_dots<kBits == 8>(second[r])), mul(scale2, activation_scale), total[r]);
            total[r] = fma(minimum2, splat(sums[kStrip + r]), total[r]);
          }
        }
        p += unit_bytes;
        codes += kStrip * kUnit;
        scales += kStrip;
        sums += kSplit ? 2 * kStrip : kStrip;
      }
    }
    for (int r = 0; r < kRows; r++) store(out + r * out_stride + lane, total[r]);
  }
}

// fp32 activations x dense weights, kVectors vectors of L outputs at once.
template <int kFormat, int kRows, int kVectors>
void dense_rows(const Matrix& m, const Operand& x, int row, int block_begin, int vector_begin, float* out, long out_stride) {
  constexpr int element_bytes = kFormat == MLX_F32 ? 4 : 2;
  const uint8_t* w[kVectors];
  for (int v = 0; v < kVectors; v++) {
    const int output = (vector_begin + v) * L;
    // bf16 pairs put two inputs of an output side by side, so a lane is 4 bytes wide there.
    const size_t lane_bytes = kFormat == MLX_F16 ? 2 : 4;
    w[v] = m.data + (block_begin + output / kBlock) * m.block_bytes + (output % kBlock) * lane_bytes;
  }
  const float* a = x.dense + (size_t)row * x.width;
  F total[kRows][kVectors];
  for (int r = 0; r < kRows; r++)
    for (int v = 0; v < kVectors; v++) total[r][v] = zero();
  if constexpr (kFormat == MLX_BF16) {
    for (int k = 0; k < m.padded_in; k += 2) {
      F even[kVectors], odd[kVectors];
      for (int v = 0; v < kVectors; v++) load_pairs((const uint16_t*)(w[v] + (size_t)k * kBlock * 2), even[v], odd[v]);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; r++) {
        const F first = splat(a[(size_t)r * x.width + k]), second = splat(a[(size_t)r * x.width + k + 1]);
        for (int v = 0; v < kVectors; v++) total[r][v] = fma(odd[v], second, fma(even[v], first, total[r][v]));
      }
    }
  } else {
    for (int k = 0; k < m.padded_in; k++) {
      F weights[kVectors];
      for (int v = 0; v < kVectors; v++) {
        const uint8_t* p = w[v] + (size_t)k * kBlock * element_bytes;
        if constexpr (kFormat == MLX_F32) {
          weights[v] = load((const float*)p);
        } else {
          weights[v] = load_half((const uint16_t*)p);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; r++) {
        const F activation = splat(a[(size_t)r * x.width + k]);
        for (int v = 0; v < kVectors; v++) total[r][v] = fma(weights[v], activation, total[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; r++)
    for (int v = 0; v < kVectors; v++) store(out + r * out_stride + (size_t)(vector_begin + v) * L, total[r][v]);
}

template <int kFormat, int kRows, int kVectors>
void dense_blocks(const Matrix& m, const Operand& x, int row, int block_begin, int block_end, float* out, long out_stride) {
  const int vectors = (block_end - block_begin) * (kBlock / L);
  int v = 0;
  for (; v + kVectors <= vectors; v += kVectors) dense_rows<kFormat, kRows, kVectors>(m, x, row, block_begin, v, out, out_stride);
  for (; v < vectors; v++) dense_rows<kFormat, kRows, 1>(m, x, row, block_begin, v, out, out_stride);
}

// Splits rows into tiles of kRowTile, 4, 2 and 1 rows. `kernel` is called with the tile height as a type.
template <int kRows>
struct Height {
  static constexpr int rows = kRows;
};

template <class Kernel>
inline void by_row_tiles(int rows, Kernel kernel) {
  int r = 0;
  for (; r + kRowTile <= rows; r += kRowTile) kernel(r, Height<kRowTile>{});
  if (kRowTile > 4 && r + 4 <= rows) kernel(r, Height<4>{}), r += 4;
  if (kRowTile > 2 && r + 2 <= rows) kernel(r, Height<2>{}), r += 2;
  for (; r < rows; r++) kernel(r, Height<1>{});
}

template <int kBits, bool kSplit, bool kHalfScales>
void affine(const Matrix& m, const Operand& x, int row_begin, int row_end, int block_begin, int block_end, float* out,
            long out_stride) {
  // Block by block, so that the second tile of rows finds the block's weights in the first-level cache.
  for (int block = block_begin; block < block_end; block++) {
    float* target = out + (size_t)(block - block_begin) * kBlock;
    by_row_tiles(row_end - row_begin, [&](int r, auto height) {
      affine_rows<kBits, kSplit, kHalfScales, decltype(height)::rows>(m, x, row_begin + r, block, target + r * out_stride,
                                                                    out_stride);
    });
  }
}

template <int kFormat>
void dense(const Matrix& m, const Operand& x, int row_begin, int row_end, int block_begin, int block_end, float* out,
           long out_stride) {
  by_row_tiles(row_end - row_begin, [&](int r, auto height) {
    constexpr int rows = decltype(height)::rows;
    constexpr int vectors = rows == kRowTile ? kWideVectors : kNarrowVectors;
    dense_blocks<kFormat, rows, vectors>(m, x, row_begin + r, block_begin, block_end, out + r * out_stride, out_stride);
  });
}

int operand_form(const Matrix& m, int) {
  if (m.format != MLX_U4 && m.format != MLX_U8) return mlx::kFormDense;
  return m.group < kUnit ? mlx::kFormInt8 | mlx::kFormHalves : mlx::kFormInt8;
}

void linear(const Matrix& m, const Operand& x, int row_begin, int row_end, int block_begin, int block_end, float* out,
            long out_stride) {
  const auto run = [&](auto kernel) { kernel(m, x, row_begin, row_end, block_begin, block_end, out, out_stride); };
  const bool split = m.group < kUnit;
  switch (m.format) {
    case MLX_U4:
      if (split) return m.half_scales ? run(affine<4, true, true>) : run(affine<4, true, false>);
      return m.half_scales ? run(affine<4, false, true>) : run(affine<4, false, false>);
    case MLX_U8:
      if (split) return m.half_scales ? run(affine<8, true, true>) : run(affine<8, true, false>);
      return m.half_scales ? run(affine<8, false, true>) : run(affine<8, false, false>);
    case MLX_BF16:
      return run(dense<MLX_BF16>);
    case MLX_F16:
      return run(dense<MLX_F16>);
    default:
      return run(dense<MLX_F32>);
  }
}

}  // namespace

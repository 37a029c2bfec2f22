// Matrix products of many rows on AMX tiles of bf16. Included after linear.h by the AMX level only.
//
// A task decodes its weights to bf16 once and multiplies all rows with them. bf16 keeps 8 bits of every weight and
// activation, an error like that of int8 activations with their scales.
#pragma once

#include "linear.h"

namespace {

// The compiler's own intrinsics do not tell it that memory is read and written.
template <int kTile>
inline void tile_load(const void* p, long stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void tile_store(void* p, long stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
// kSum += kA x kB
template <int kSum, int kA, int kB>
inline void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
}

struct alignas(64) TileShapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];

  constexpr TileShapes() : palette(1), start_row(0), reserved(), row_bytes(), rows() {}
  constexpr void set(int tile, int row_count, int bytes) {
    rows[tile] = (uint8_t)row_count;
    row_bytes[tile] = (uint16_t)bytes;
  }
};

inline void use_shapes(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }

constexpr int kTileElements = 16 * 32;  // of bf16

// Tiles 0-3: sums; 4, 5: activations; 6, 7: weights.
constexpr TileShapes bf16_shapes() {
  TileShapes shapes;
  for (int tile = 0; tile < 8; tile++) shapes.set(tile, 16, 64);
  return shapes;
}

// Rounds pairs of floats to bf16 and interleaves them: the first of each pair in the low halves.
inline __m512i to_bf16_pairs(F first, F second) {
  const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32((int)0xffff0000u);
  const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(first), half), 16);
  const __m512i high = _mm512_add_epi32(_mm512_castps_si512(second), half);
  return _mm512_ternarylogic_epi32(upper, high, low, 0xea);  // (upper & high) | low
}

// Byte kByte of every lane as a float.
template <int kByte>
inline F byte_as_float(__m512i lanes) {
  return to_float(_mm512_and_si512(kByte ? _mm512_srli_epi32(lanes, 8 * kByte) : lanes, _mm512_set1_epi32(255)));
}

// Nibble kNibble of every lane as a float, by table: a permutation looks at the low four bits of its index only.
template <int kNibble>
inline F nibble_as_float(__m512i lanes) {
  const F values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_permutexvar_ps(kNibble ? _mm512_srli_epi32(lanes, 4 * kNibble) : lanes, values);
}

// One step (four inputs) as two rows of a bf16 tile.
inline void store_step(uint16_t* tile, int step, F a, F b, F c, F d, F scale, F minimum) {
  _mm512_store_si512(tile + (2 * step) * 32, to_bf16_pairs(fma(a, scale, minimum), fma(b, scale, minimum)));
  _mm512_store_si512(tile + (2 * step + 1) * 32, to_bf16_pairs(fma(c, scale, minimum), fma(d, scale, minimum)));
}

// Inputs of the units [unit_begin, unit_end), which start and end with a record.
template <int kBits, bool kHalfScales>
void decode_block(const Matrix& m, int block, int unit_begin, int unit_end, uint16_t* tile) {
  const bool split = m.group < kUnit;
  const int record_units = split ? 1 : m.group / kUnit;
  constexpr size_t scale_bytes = kScaleBytes<kHalfScales>;
  const size_t record_bytes = (split ? 4 : 2) * scale_bytes + (size_t)record_units * kUnit * kBlock / (kBits == 4 ? 2 : 1);
  const uint8_t* p = m.data + block * m.block_bytes + unit_begin / record_units * record_bytes;
  for (int unit = unit_begin; unit < unit_end; unit += record_units) {
    const F scale = load_scales<kHalfScales>(p, 0), minimum = load_scales<kHalfScales>(p + scale_bytes, 0);
    F scale2 = scale, minimum2 = minimum;
    if (split) {
      scale2 = load_scales<kHalfScales>(p + 2 * scale_bytes, 0);
      minimum2 = load_scales<kHalfScales>(p + 3 * scale_bytes, 0);
    }
    prefetch_ahead(p, (split ? 4 : 2) * scale_bytes);
    p += (split ? 4 : 2) * scale_bytes;
    for (int i = 0; i < record_units; i++, tile += kUnit * kBlock) {
      if constexpr (kBits == 4) {
        prefetch_ahead(p, kSteps / 2 * kStepBytes);
        for (int s = 0; s < kSteps / 2; s++, p += kStepBytes) {
          const C c = load_codes(p);
          store_step(tile, s, nibble_as_float<0>(c), nibble_as_float<2>(c), nibble_as_float<4>(c), nibble_as_float<6>(c), scale,
                     minimum);
          store_step(tile, s + kSteps / 2, nibble_as_float<1>(c), nibble_as_float<3>(c), nibble_as_float<5>(c),
                     nibble_as_float<7>(c), scale2, minimum2);
        }
      } else {
        prefetch_ahead(p, kSteps * kStepBytes);
        for (int s = 0; s < kSteps; s++, p += kStepBytes) {
          const C c = load_codes(p);
          const bool upper = s >= kSteps / 2;
          store_step(tile, s, byte_as_float<0>(c), byte_as_float<1>(c), byte_as_float<2>(c), byte_as_float<3>(c),
                     upper ? scale2 : scale, upper ? minimum2 : minimum);
        }
      }
    }
  }
}

void load_panel(const Matrix& m, const mlx::Slice& slice, uint16_t* panel) {
  const int units = slice.unit_end - slice.unit_begin;
  for (int block = slice.block_begin; block < slice.block_end; block++, panel += (size_t)units * kUnit * kBlock) {
    if (m.format == MLX_U4) {
      const auto decode = m.half_scales ? decode_block<4, true> : decode_block<4, false>;
      decode(m, block, slice.unit_begin, slice.unit_end, panel);
    } else if (m.format == MLX_U8) {
      const auto decode = m.half_scales ? decode_block<8, true> : decode_block<8, false>;
      decode(m, block, slice.unit_begin, slice.unit_end, panel);
    }
  }
}

// Up to two strips of activations x up to two tile columns of weights, `units` tiles deep. Adds to `out` or overwrites it.
template <bool kTwoStrips, bool kTwoColumns>
void bf16_tiles(const uint16_t* a, const uint16_t* a2, const uint16_t* b, const uint16_t* b2, int units, bool adds, float* out,
                long out_stride) {
  float* out2 = out + kStrip * out_stride;
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  if (adds) {
    tile_load<0>(out, out_stride * 4);
    if (kTwoColumns) tile_load<1>(out + kBlock, out_stride * 4);
    if (kTwoStrips) tile_load<2>(out2, out_stride * 4);
    if (kTwoColumns && kTwoStrips) tile_load<3>(out2 + kBlock, out_stride * 4);
  }
  for (int unit = 0; unit < units; unit++) {
    const size_t at = (size_t)unit * kTileElements;
    tile_load<4>(a + at, 64);
    tile_load<6>(b + at, 64);
    tile_dot_bf16<0, 4, 6>();
    if (kTwoColumns) {
      tile_load<7>(b2 + at, 64);
      tile_dot_bf16<1, 4, 7>();
    }
    if (kTwoStrips) {
      tile_load<5>(a2 + at, 64);
      tile_dot_bf16<2, 5, 6>();
    }
    if (kTwoColumns && kTwoStrips) tile_dot_bf16<3, 5, 7>();
  }
  tile_store<0>(out, out_stride * 4);
  if (kTwoColumns) tile_store<1>(out + kBlock, out_stride * 4);
  if (kTwoStrips) tile_store<2>(out2, out_stride * 4);
  if (kTwoColumns && kTwoStrips) tile_store<3>(out2 + kBlock, out_stride * 4);
}

inline void bf16_product(bool two_strips, bool two_columns, const uint16_t* a, const uint16_t* a2, const uint16_t* b,
                         const uint16_t* b2, int units, bool adds, float* out, long out_stride) {
  const auto kernel = two_strips ? (two_columns ? bf16_tiles<true, true> : bf16_tiles<true, false>)
                                 : (two_columns ? bf16_tiles<false, true> : bf16_tiles<false, false>);
  kernel(a, a2, b, b2, units, adds, out, out_stride);
}

// Writes whole strips: `out` has room for them.
void bf16_linear(const Matrix& m, const Operand& x, int row_begin, int row_end, const mlx::Slice& slice, const uint16_t* panel,
                 float* out, long out_stride) {
  static constexpr TileShapes shapes = bf16_shapes();
  use_shapes(shapes);
  const int all_units = m.padded_in / kUnit, units = slice.unit_end - slice.unit_begin;
  const bool stored = m.format == MLX_BF16;  // such matrices are made of tiles as they are
  const size_t column = (size_t)(stored ? all_units : units) * kTileElements;
  const uint16_t* weights =
      stored ? (const uint16_t*)m.data + slice.block_begin * column + (size_t)slice.unit_begin * kTileElements : panel;
  for (int row = row_begin; row < row_end; row += 2 * kStrip) {
    const uint16_t* a = x.tiles + ((size_t)(row / kStrip) * all_units + slice.unit_begin) * kTileElements;
    for (int block = slice.block_begin; block < slice.block_end; block += 2) {
      const uint16_t* b = weights + (block - slice.block_begin) * column;
      bf16_product(row + kStrip < row_end, block + 1 < slice.block_end, a, a + (size_t)all_units * kTileElements, b, b + column,
                   units, slice.unit_begin > 0, out + (row - row_begin) * out_stride + (block - slice.block_begin) * kBlock,
                   out_stride);
    }
  }
}

// From so many rows on tiles pay. Affine weights have to be decoded first, which costs as much as 16 rows of integer dots;
// int8 tiles would not need that, but every group's sums would have to leave the tiles for its scale, which costs the same.
constexpr int kWideRows = 24, kWideDenseRows = 5;

int amx_operand_form(const Matrix& m, int rows) {
  if (m.format == MLX_BF16 && rows >= kWideDenseRows) return mlx::kFormTiles;
  if ((m.format == MLX_U4 || m.format == MLX_U8) && rows >= kWideRows) return mlx::kFormTiles;
  return operand_form(m, rows);
}

void amx_linear(const Matrix& m, int form, const Operand& x, int row_begin, int row_end, const mlx::Slice& slice,
                const uint16_t* panel, float* out, long out_stride) {
  if (form & mlx::kFormTiles) return bf16_linear(m, x, row_begin, row_end, slice, panel, out, out_stride);
  linear_without_tiles(m, form, x, row_begin, row_end, slice, panel, out, out_stride);
}

// Idle tiles keep their power and would be saved at every switch of threads.
void release_tiles() { asm volatile("tilerelease" ::); }

}  // namespace

// Data layouts and the kernel table: what the level-independent code and the kernels of every level agree on.
//
// A translation unit of a level is compiled with that level's instruction set, so whatever it shares with others must not
// be an inline function the linker may pick from it: this header holds plain data and declarations only.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "api.h"

namespace mlx {

constexpr int kBlock = 16;         // output features per block of a packed matrix
constexpr int kUnit = 32;          // inputs that share an activation scale
constexpr int kTileRows = 32;      // rows per pass of a wide linear
constexpr int kTokens = MLX_BLOCK_TOKENS;
constexpr int kAttendRows = 32;    // most rows of one attend() call

// A packed weight matrix: blocks of 16 outputs, one after another, each a run of records along the inputs (padded to 32).
//
// Affine: a record is a scale group: 16 scales, then 16 minimums (fp16 when `half_scales`, else fp32; for groups of 16 two
// such pairs per record of 32 inputs), then the codes of its 32-input units. A unit is eight steps of four inputs; a step is
// 64 bytes, four consecutive inputs of each of the 16 outputs, which is both an operand of a four-way integer dot product
// and a row of an AMX tile. 4-bit units hold step s in the low and step s + 4 in the high nibbles of vector s.
// Dense: bf16 in pairs [in / 2][16][2] (again an AMX tile row), fp16 and fp32 as [in][16].
struct Matrix {
  int format;
  int out, in;
  int blocks;     // of 16 outputs, the last one padded with zeros
  int padded_in;  // multiple of 32
  int group;
  bool half_scales;
  size_t block_bytes;
  const uint8_t* data;
  const float* bias;  // [blocks * 16] or nullptr
};

// Part of a matrix: outputs in blocks, inputs in units of 32.
struct Slice {
  int block_begin, block_end;
  int unit_begin, unit_end;
};

// The forms of an activation matrix that kernels read.
enum Form : int {
  kFormInt8 = 1,   // codes, scales, sums
  kFormHalves = 2, // half_sums as well
  kFormDense = 4,
  kFormTiles = 8,
};

constexpr int kStrip = 16;  // rows of an operand that lie together

// An activation matrix; inputs are padded with zeros to `width`.
//
// The int8 form and the tiles come in strips of 16 rows, unit by unit, so that a kernel reaches all rows of a unit from one
// address and AMX loads a unit of a strip as one tile.
struct Operand {
  int width;         // multiple of 32
  int8_t* codes;     // [strips][width / 32][16][32]; symmetric int8 with one scale per row and 32 inputs
  float* scales;     // [strips][width / 32][16]
  float* sums;       // [strips][width / 32][16]: scale * sum of codes
  float* half_sums;  // [strips][width / 32][2][16]: the same over 16 inputs
  float* dense;      // [rows, width]
  uint16_t* tiles;   // bf16 [strips][width / 32][16][32]
};

// Keys and values of one layer in the pool. A block keeps all layers together, so that used blocks are all that is touched.
//
// A record is one block of one head. Keys: bf16 [dim / 2][16 tokens][2], fp32 [dim][16], int8 [dim][16] then 16 scales.
// Values: bf16 [8 token pairs][dim][2], fp32 [16][dim], int8 [16][dim] then 16 scales.
struct KvLayer {
  uint8_t* base;        // of block 0, this layer
  size_t block_stride;  // bytes from one block to the next
  size_t key_record, value_record;
  size_t values;        // offset of the value records
  int k_type, v_type;
  int head_dim;
};

// Attention of consecutive query vectors of one row over positions [begin, end).
// Query i sees positions [max(0, limit_i - window), limit_i) with limit_i = limit + i * limit_step; window 0 is unlimited.
struct AttendTask {
  const KvLayer* kv;
  const int32_t* block_table;
  int kv_head;
  const float* queries;  // scaled already
  long query_stride;
  int rows;  // <= kAttendRows
  int limit, limit_step, window;
  int begin, end;
  float* out;  // [rows, out_stride]
  long out_stride;
  // Not null: `out` stays unnormalised, and each row's maximum score and weight sum are written here.
  float* maxima;
  float* weights;
  long partial_stride;  // from one row's maximum to the next
  float* scratch;  // attend_scratch_floats()
};

// What is done to one head of queries, keys or values after the projection.
struct HeadTask {
  const float* bias;         // [head_dim] or nullptr
  const float* norm;         // [head_dim] or nullptr
  float eps;
  const float* cosines;      // this token's table row, or nullptr for no rotation
  const float* sines;
  int rotary_half;
  int head_dim;
};

struct Kernels {
  // Forms of the operand that `matrix` reads when a step has `rows` rows.
  int (*operand_form)(const Matrix& matrix, int rows);
  // One row of an operand: RMS norm when `norm` is given, then every form in `forms`. `scratch`: operand.width floats.
  void (*prepare)(const float* row, int width, const float* norm, float eps, int forms, const Operand& operand, int index,
                  float* scratch);
  // Decodes a slice of weights to bf16 tiles, [blocks][units][16][32] at `panel`. Matrices stored in bf16 need no panel.
  void (*load_panel)(const Matrix& matrix, const Slice& slice, uint16_t* panel);
  // out[row - row_begin][16 * (block - slice.block_begin) + lane], without bias, for up to kTileRows rows from a multiple of
  // that; `out` has room for kTileRows rows. `form` is what operand_form returned. A slice that does not start with the
  // first unit adds to `out`; only tiles take slices of inputs.
  void (*linear)(const Matrix& matrix, int form, const Operand& x, int row_begin, int row_end, const Slice& slice,
                 const uint16_t* panel, float* out, long out_stride);
  // x += factor * (y + bias)
  void (*add)(float* x, long x_stride, const float* y, long y_stride, int rows, int columns, const float* bias, float factor);
  // low[r] = scale * (down[r] . x) for `rank` rows of `width` (a multiple of 32) inputs.
  void (*shrink)(const float* x, int width, const float* down, int rank, float scale, float* low);
  // y += sum over r of low[r] * up[r], rows of `up` being `stride` floats apart.
  void (*expand)(const float* low, int rank, const float* up, long stride, int columns, float* y);
  // out = activation(gate + gate_bias) * (up + up_bias)
  void (*gate)(int activation, const float* gate, const float* up, long stride, int rows, int columns, const float* gate_bias,
               const float* up_bias, float* out, long out_stride);
  void (*embed)(const Matrix& matrix, int token, float factor, float* out);
  void (*query_head)(const HeadTask& task, float* head, float factor, float* out);
  void (*key_head)(const HeadTask& task, float* head, uint8_t* record, int type, int token);
  void (*value_head)(const HeadTask& task, float* head, uint8_t* record, int type, int token);
  void (*attend)(const AttendTask& task);
  // Weighted mean of partial results: outs [parts, dim].
  void (*merge)(const float* outs, const float* maxima, const float* weights, int parts, int dim, float* out);
  // Called by each thread around a step.
  void (*begin)();
  void (*end)();
};

constexpr int kChunk = 256;  // positions whose scores are held at once
constexpr int kMaxHeadDim = 512;
constexpr size_t attend_scratch_floats() { return (size_t)kAttendRows * (2 * kChunk + 3 * kMaxHeadDim); }

// Null when the build lacks the level.
const Kernels* portable_kernels();
const Kernels* neon_kernels();
const Kernels* avx2_kernels();
const Kernels* avx_vnni_kernels();
const Kernels* avx512_kernels();
const Kernels* amx_kernels();

}  // namespace mlx

#include "pack.h"

#include <math.h>
#include <string.h>

#include <stdexcept>

namespace mlx {

namespace {

// Round to nearest even; finite values in fp16's range only.
uint16_t to_half(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  const uint32_t sign = (bits >> 16) & 0x8000;
  bits &= 0x7fffffff;
  if (bits < 0x38800000) {  // below the smallest normal: count units of 2^-24
    float magnitude;
    memcpy(&magnitude, &bits, 4);
    return (uint16_t)(sign | (uint32_t)lrintf(magnitude * 16777216.0f));
  }
  const uint32_t rounded = bits + 0xfff + ((bits >> 13) & 1);
  return (uint16_t)(sign | ((rounded - 0x38000000) >> 13));
}

float from_half(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const float magnitude = exponent ? ldexpf((float)((half & 0x3ff) | 0x400), exponent - 25) : ldexpf((float)(half & 0x3ff), -24);
  return half & 0x8000 ? -magnitude : magnitude;
}

// A normal fp16 number exactly, or zero: what most formats store. The general test below is slow.
bool is_half(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  const uint32_t exponent = bits >> 23 & 0xff;
  return (bits & 0x1fff) == 0 && ((exponent >= 113 && exponent <= 142) || (bits & 0x7fffffff) == 0);
}

// Whether fp16 holds the pairs to a few parts in 10^4 of a step, far below the quantisation error itself. It holds those
// of GGUF's and most other formats exactly.
bool fit_half(const float* scales, const float* minimums, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (is_half(scales[i]) && is_half(minimums[i])) continue;
    const float scale = fabsf(scales[i]), minimum = fabsf(minimums[i]);
    if (!(scale <= 65000.0f && minimum <= 65000.0f)) return false;
    if (fabsf(from_half(to_half(scale)) - scale) > scale / 2048.0f) return false;
    const float error = fabsf(from_half(to_half(minimum)) - minimum);
    if (error > minimum / 2048.0f && error > scale / 64.0f) return false;
  }
  return true;
}

struct Job {
  const mlx_matrix* source;
  Matrix matrix;
  Team* team;
};

void put_scales(uint8_t* target, const Job& job, const float* source, int block, int index) {
  const int per_row = job.source->in / job.source->group;
  for (int lane = 0; lane < kBlock; lane++) {
    const int output = block * kBlock + lane;
    const float value = output < job.source->out && index < per_row ? source[(size_t)output * per_row + index] : 0.0f;
    if (job.matrix.half_scales) {
      ((uint16_t*)target)[lane] = to_half(value);
    } else {
      ((float*)target)[lane] = value;
    }
  }
}

void put_codes(uint8_t* target, const Job& job, int block, int start) {
  const bool four_bits = job.matrix.format == MLX_U4;
  for (int lane = 0; lane < kBlock; lane++) {
    uint8_t codes[kUnit] = {0};
    const int output = block * kBlock + lane;
    if (output < job.source->out && start < job.source->in) {
      const int count = job.source->in - start < kUnit ? job.source->in - start : kUnit;
      memcpy(codes, (const uint8_t*)job.source->data + (size_t)output * job.source->in + start, count);
    }
    for (int step = 0; step < (four_bits ? 4 : 8); step++) {
      uint32_t low, high;
      memcpy(&low, codes + step * 4, 4);
      memcpy(&high, codes + (step + 4) % 8 * 4, 4);
      const uint32_t word = four_bits ? low | high << 4 : low;
      memcpy(target + step * 64 + lane * 4, &word, 4);
    }
  }
}

void pack_affine_block(const Job& job, int block) {
  const Matrix& m = job.matrix;
  uint8_t* p = (uint8_t*)m.data + block * m.block_bytes;
  const size_t scale_bytes = kBlock * (m.half_scales ? 2 : 4);
  const size_t unit_bytes = kUnit * kBlock / (m.format == MLX_U4 ? 2 : 1);
  const int record = m.group < kUnit ? kUnit : m.group;
  for (int start = 0; start < m.padded_in; start += record) {
    for (int group = start / m.group; group * m.group < start + record; group++) {
      put_scales(p, job, job.source->scales, block, group);
      put_scales(p + scale_bytes, job, job.source->minimums, block, group);
      p += 2 * scale_bytes;
    }
    for (int unit = start; unit < start + record; unit += kUnit, p += unit_bytes) put_codes(p, job, block, unit);
  }
}

void pack_dense_block(const Job& job, int block) {
  const Matrix& m = job.matrix;
  uint8_t* p = (uint8_t*)m.data + block * m.block_bytes;
  for (int lane = 0; lane < kBlock; lane++) {
    const int output = block * kBlock + lane;
    if (output >= m.out) break;
    const size_t row = (size_t)output * m.in;
    for (int i = 0; i < m.in; i++) {
      if (m.format == MLX_F32) {
        ((float*)p)[(size_t)i * kBlock + lane] = ((const float*)job.source->data)[row + i];
      } else {
        const size_t at = m.format == MLX_BF16 ? ((size_t)(i / 2) * kBlock + lane) * 2 + i % 2 : (size_t)i * kBlock + lane;
        ((uint16_t*)p)[at] = ((const uint16_t*)job.source->data)[row + i];
      }
    }
  }
}

void pack_blocks(void* argument, int member) {
  const Job& job = *(const Job*)argument;
  const bool affine = job.matrix.format == MLX_U4 || job.matrix.format == MLX_U8;
  for (int block; (block = job.team->claim(member, job.matrix.blocks)) >= 0;)
    (affine ? pack_affine_block : pack_dense_block)(job, block);
}

size_t block_bytes(const Matrix& m) {
  if (m.format == MLX_F32) return (size_t)m.padded_in * kBlock * 4;
  if (m.format == MLX_BF16 || m.format == MLX_F16) return (size_t)m.padded_in * kBlock * 2;
  const size_t codes = (size_t)m.padded_in * kBlock / (m.format == MLX_U4 ? 2 : 1);
  return codes + (size_t)(m.padded_in / m.group) * 2 * kBlock * (m.half_scales ? 2 : 4);
}

}  // namespace

Matrix pack(const mlx_matrix& source, Arena& arena, Team& team) {
  Matrix m = {};
  m.format = source.format;
  m.out = source.out;
  m.in = source.in;
  if (m.out <= 0 || m.in <= 0 || !source.data) throw std::invalid_argument("a matrix is empty");
  m.blocks = (m.out + kBlock - 1) / kBlock;
  m.padded_in = (m.in + kUnit - 1) / kUnit * kUnit;
  if (m.format == MLX_U4 || m.format == MLX_U8) {
    m.group = source.group;
    const bool known = m.group == 16 || m.group == 32 || m.group == 64 || m.group == 128;
    if (!known || m.in % m.group || !source.scales || !source.minimums)
      throw std::invalid_argument("an affine matrix needs groups of 16, 32, 64 or 128 that divide its inputs");
    const size_t count = (size_t)m.out * (m.in / m.group);
    m.half_scales = fit_half(source.scales, source.minimums, count);
  } else if (m.format != MLX_BF16 && m.format != MLX_F16 && m.format != MLX_F32) {
    throw std::invalid_argument("unknown weight format");
  }
  m.block_bytes = block_bytes(m);
  m.data = arena.take(m.block_bytes * m.blocks);
  if (source.bias) {
    float* bias = (float*)arena.take((size_t)m.blocks * kBlock * sizeof(float));
    memcpy(bias, source.bias, (size_t)m.out * sizeof(float));
    m.bias = bias;
  }
  Job job{&source, m, &team};
  team.run(pack_blocks, &job);
  return m;
}

Update pack_update(const Matrix& matrix, int adapter, int rank, const float* down, const float* up, Arena& arena) {
  const size_t columns = (size_t)matrix.blocks * kBlock;
  float* padded_down = (float*)arena.take((size_t)rank * matrix.padded_in * sizeof(float));
  float* turned_up = (float*)arena.take(rank * columns * sizeof(float));
  for (int r = 0; r < rank; r++) {
    memcpy(padded_down + (size_t)r * matrix.padded_in, down + (size_t)r * matrix.in, (size_t)matrix.in * sizeof(float));
    for (int output = 0; output < matrix.out; output++) turned_up[r * columns + output] = up[(size_t)output * rank + r];
  }
  return {adapter, rank, padded_down, turned_up};
}

}  // namespace mlx

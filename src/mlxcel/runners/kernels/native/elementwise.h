// Norms, activations, rotation, quantisation of activations, cache records. Included once per level, after its simd header.
#pragma once

#include "layout.h"

namespace {

// exp(x) within 2 ulp: Cody-Waite reduction by ln 2, then the degree-6 Taylor polynomial around 0 (|r| <= ln(2) / 2).
inline F exponential(F x) {
  x = max(min(x, splat(88.0f)), splat(-87.0f));
  const F n = round(mul(x, splat(1.44269504f)));
  F r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  F p = splat(1.0f / 720.0f);
  p = fma(p, r, splat(1.0f / 120.0f));
  p = fma(p, r, splat(1.0f / 24.0f));
  p = fma(p, r, splat(1.0f / 6.0f));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.0f));
  p = fma(p, r, splat(1.0f));
  return times_power_of_two(p, n);
}

// x * sigmoid(y)
inline F gated(F x, F y) { return div(x, add(splat(1.0f), exponential(sub(zero(), y)))); }

inline uint16_t to_bf16(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

void quantise_row(const float* x, int width, int forms, const mlx::Operand& operand, int row) {
  const int units = width / mlx::kUnit, line = row % mlx::kStrip;
  for (int unit = 0; unit < units; unit++) {
    const size_t at = (size_t)(row / mlx::kStrip) * units + unit;
    int8_t* codes = operand.codes + (at * mlx::kStrip + line) * mlx::kUnit;
    const float* values = x + unit * mlx::kUnit;
    F largest = zero();
    for (int i = 0; i < mlx::kUnit; i += L) largest = max(largest, abs(load(values + i)));
    const float peak = maximum(largest);
    const float scale = peak / 127.0f;
    // A unit of zeros, or of numbers too small for a reciprocal, becomes zeros.
    const F inverse = splat(scale > 1e-37f ? 127.0f / peak : 0.0f);
    float half_sums[2];
    for (int half = 0; half < 2; half++) {
      I counted = no_dots();
      for (int i = half * 16; i < half * 16 + 16; i += L) {
        const F scaled = mul(load(values + i), inverse);
        store_int8(codes + i, scaled);
        counted = add_int(counted, round_to_int(scaled));
      }
      half_sums[half] = (float)sum_int(counted);
    }
    operand.scales[at * mlx::kStrip + line] = scale;
    operand.sums[at * mlx::kStrip + line] = scale * (half_sums[0] + half_sums[1]);
    if (forms & mlx::kFormHalves) {
      operand.half_sums[2 * at * mlx::kStrip + line] = scale * half_sums[0];
      operand.half_sums[(2 * at + 1) * mlx::kStrip + line] = scale * half_sums[1];
    }
  }
}

void tile_row(const float* x, int width, const mlx::Operand& operand, int row) {
  const int units = width / mlx::kUnit;
  uint16_t* strip = operand.tiles + ((size_t)(row / mlx::kStrip) * units * mlx::kStrip + row % mlx::kStrip) * mlx::kUnit;
  for (int unit = 0; unit < units; unit++, strip += mlx::kStrip * mlx::kUnit)
    for (int i = 0; i < mlx::kUnit; i += L) store_bf16(strip + i, load(x + unit * mlx::kUnit + i));
}

void prepare(const float* row, int width, const float* norm, float eps, int forms, const mlx::Operand& operand, int index,
             float* scratch) {
  const int padded = operand.width;
  float* dense = forms & mlx::kFormDense ? operand.dense + (size_t)index * padded : scratch;
  F squares = zero();
  int i = 0;
  if (norm) {
    float tail = 0.0f;
    for (; i + L <= width; i += L) {
      const F x = load(row + i);
      squares = fma(x, x, squares);
    }
    for (; i < width; i++) tail += row[i] * row[i];
    const float factor = 1.0f / __builtin_sqrtf((sum(squares) + tail) / (float)width + eps);
    const F factors = splat(factor);
    for (i = 0; i + L <= width; i += L) store(dense + i, mul(mul(load(row + i), factors), load(norm + i)));
    for (; i < width; i++) dense[i] = row[i] * factor * norm[i];
  } else {
    for (; i + L <= width; i += L) store(dense + i, load(row + i));
    for (; i < width; i++) dense[i] = row[i];
  }
  for (; i < padded; i++) dense[i] = 0.0f;
  if (forms & mlx::kFormInt8) quantise_row(dense, padded, forms, operand, index);
  if (forms & mlx::kFormTiles) tile_row(dense, padded, operand, index);
}

void add_rows(float* x, long x_stride, const float* y, long y_stride, int rows, int columns, const float* bias, float factor) {
  for (int r = 0; r < rows; r++, x += x_stride, y += y_stride) {
    for (int i = 0; i < columns; i++) {
      const float value = bias ? y[i] + bias[i] : y[i];
      x[i] += factor * value;
    }
  }
}

void shrink(const float* x, int width, const float* down, int rank, float scale, float* low) {
  for (int r = 0; r < rank; r++, down += width) {
    F total = zero();
    for (int i = 0; i < width; i += L) total = fma(load(x + i), load(down + i), total);
    low[r] = scale * sum(total);
  }
}

void expand(const float* low, int rank, const float* up, long stride, int columns, float* y) {
  for (int r = 0; r < rank; r++, up += stride)
    for (int i = 0; i < columns; i++) y[i] += low[r] * up[i];
}

template <int kActivation>
inline F activate(F x) {
  if constexpr (kActivation == MLX_SILU) return gated(x, x);
  if constexpr (kActivation == MLX_RELU2) {
    const F positive = max(x, zero());
    return mul(positive, positive);
  }
  // 0.5 x (1 + tanh(u)) = x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3)
  const F cubic = fma(mul(mul(x, x), x), splat(0.044715f), x);
  return gated(x, mul(cubic, splat(1.5957691216f)));
}

template <int kActivation>
void gate_rows(const float* gate, const float* up, long stride, int rows, int columns, const float* gate_bias,
               const float* up_bias, float* out, long out_stride) {
  for (int r = 0; r < rows; r++, gate += stride, up += stride, out += out_stride) {
    for (int i = 0; i < columns; i += L) {
      F g = load(gate + i), u = load(up + i);
      if (gate_bias) g = add(g, load(gate_bias + i));
      if (up_bias) u = add(u, load(up_bias + i));
      if constexpr (kActivation == MLX_GELU) {
        float values[L];
        store(values, g);
        for (int j = 0; j < L; j++) values[j] *= 0.5f * (1.0f + __builtin_erff(values[j] * 0.70710678f));
        store(out + i, mul(load(values), u));
      } else {
        store(out + i, mul(activate<kActivation>(g), u));
      }
    }
  }
}

// `columns` is a multiple of 16, as the blocks of the two matrices are.
void gate(int activation, const float* gate, const float* up, long stride, int rows, int columns, const float* gate_bias,
          const float* up_bias, float* out, long out_stride) {
  const auto run = [&](auto kernel) { kernel(gate, up, stride, rows, columns, gate_bias, up_bias, out, out_stride); };
  switch (activation) {
    case MLX_SILU:
      return run(gate_rows<MLX_SILU>);
    case MLX_GELU:
      return run(gate_rows<MLX_GELU>);
    case MLX_GELU_TANH:
      return run(gate_rows<MLX_GELU_TANH>);
    default:
      return run(gate_rows<MLX_RELU2>);
  }
}

inline float read_half(uint16_t bits) {
  alignas(64) uint16_t lanes[L] = {bits};
  float values[L];
  store(values, load_half(lanes));
  return values[0];
}

inline float read_bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  __builtin_memcpy(&value, &wide, 4);
  return value;
}

// Row `token` of an embedding: one output of a packed matrix.
void embed(const mlx::Matrix& m, int token, float factor, float* out) {
  const uint8_t* p = m.data + (size_t)(token / mlx::kBlock) * m.block_bytes;
  const int lane = token % mlx::kBlock;
  if (m.format == MLX_U4 || m.format == MLX_U8) {
    const size_t width = m.half_scales ? 2 : 4;
    const auto scale_at = [&](const uint8_t* scales) {
      return m.half_scales ? read_half(((const uint16_t*)scales)[lane]) : ((const float*)scales)[lane];
    };
    const int pairs = m.group < mlx::kUnit ? 2 : 1;
    const int record = m.group < mlx::kUnit ? mlx::kUnit : m.group;
    for (int start = 0; start < m.padded_in; start += record) {
      float scales[2], minimums[2];
      for (int i = 0; i < pairs; i++, p += 2 * mlx::kBlock * width) {
        scales[i] = scale_at(p);
        minimums[i] = scale_at(p + mlx::kBlock * width);
      }
      for (int unit = start; unit < start + record; unit += mlx::kUnit) {
        for (int i = 0; i < mlx::kUnit && unit + i < m.in; i++) {
          const int step = i / 4;
          const int code = m.format == MLX_U8 ? p[step * 64 + lane * 4 + i % 4]
                                              : (p[(step % 4) * 64 + lane * 4 + i % 4] >> (step / 4 * 4)) & 15;
          const int pair = pairs == 2 ? i / 16 : 0;
          out[unit + i] = factor * (scales[pair] * (float)code + minimums[pair]);
        }
        p += m.format == MLX_U8 ? mlx::kUnit * mlx::kBlock : mlx::kUnit * mlx::kBlock / 2;
      }
    }
    return;
  }
  for (int i = 0; i < m.in; i++) {
    float value;
    if (m.format == MLX_BF16) {
      value = read_bf16(((const uint16_t*)p)[((size_t)(i / 2) * mlx::kBlock + lane) * 2 + i % 2]);
    } else if (m.format == MLX_F16) {
      value = read_half(((const uint16_t*)p)[(size_t)i * mlx::kBlock + lane]);
    } else {
      value = ((const float*)p)[(size_t)i * mlx::kBlock + lane];
    }
    out[i] = factor * value;
  }
}

// Bias, RMS norm and rotation of one head in place ("neox" order: the two halves turn against each other).
void finish_head(const mlx::HeadTask& task, float* head) {
  const int dim = task.head_dim;
  if (task.bias)
    for (int i = 0; i < dim; i++) head[i] += task.bias[i];
  if (task.norm) {
    F squares = zero();
    for (int i = 0; i < dim; i += L) squares = fma(load(head + i), load(head + i), squares);
    const float factor = 1.0f / __builtin_sqrtf(sum(squares) / (float)dim + task.eps);
    for (int i = 0; i < dim; i++) head[i] = head[i] * factor * task.norm[i];
  }
  if (!task.cosines) return;
  const int half = task.rotary_half;
  float* first = head;
  float* second = head + half;
  for (int i = 0; i < half; i++) {
    const float a = first[i], b = second[i];
    first[i] = a * task.cosines[i] - b * task.sines[i];
    second[i] = b * task.cosines[i] + a * task.sines[i];
  }
}

void query_head(const mlx::HeadTask& task, float* head, float factor, float* out) {
  finish_head(task, head);
  for (int i = 0; i < task.head_dim; i++) out[i] = head[i] * factor;
}

// Quantises a head to int8 with one scale.
float head_codes(const float* head, int dim, int8_t* codes) {
  F largest = zero();
  for (int i = 0; i < dim; i += L) largest = max(largest, abs(load(head + i)));
  const float peak = maximum(largest), scale = peak / 127.0f;
  const F inverse = splat(scale > 1e-37f ? 127.0f / peak : 0.0f);
  for (int i = 0; i < dim; i += L) store_int8(codes + i, mul(load(head + i), inverse));
  return scale;
}

void key_head(const mlx::HeadTask& task, float* head, uint8_t* record, int type, int token) {
  finish_head(task, head);
  const int dim = task.head_dim;
  if (type == MLX_KV_F32) {
    for (int i = 0; i < dim; i++) ((float*)record)[(size_t)i * mlx::kTokens + token] = head[i];
  } else if (type == MLX_KV_BF16) {
    for (int i = 0; i < dim; i += 2) {
      const uint32_t pair = to_bf16(head[i]) | (uint32_t)to_bf16(head[i + 1]) << 16;
      ((uint32_t*)record)[(size_t)(i / 2) * mlx::kTokens + token] = pair;
    }
  } else {
    alignas(64) int8_t codes[mlx::kMaxHeadDim];
    const float scale = head_codes(head, dim, codes);
    for (int i = 0; i < dim; i++) ((int8_t*)record)[(size_t)i * mlx::kTokens + token] = codes[i];
    ((float*)(record + (size_t)dim * mlx::kTokens))[token] = scale;
  }
}

void value_head(const mlx::HeadTask& task, float* head, uint8_t* record, int type, int token) {
  finish_head(task, head);
  const int dim = task.head_dim;
  if (type == MLX_KV_F32) {
    float* target = (float*)record + (size_t)token * dim;
    for (int i = 0; i < dim; i++) target[i] = head[i];
  } else if (type == MLX_KV_BF16) {
    uint16_t* target = (uint16_t*)record + (size_t)(token / 2) * dim * 2 + token % 2;
    for (int i = 0; i < dim; i++) target[2 * i] = to_bf16(head[i]);
  } else {
    const float scale = head_codes(head, dim, (int8_t*)record + (size_t)token * dim);
    ((float*)(record + (size_t)dim * mlx::kTokens))[token] = scale;
  }
}

}  // namespace

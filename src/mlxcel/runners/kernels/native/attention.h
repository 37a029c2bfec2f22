// Attention over paged keys and values with a streaming softmax. Included once per level, after elementwise.h.
#pragma once

#include "layout.h"

namespace {

using mlx::AttendTask;
using mlx::kChunk;
using mlx::KvLayer;
using mlx::kTokens;

// Finite, so that a row whose positions are all masked in a chunk has a defined (and later discarded) softmax.
constexpr float kMasked = -1e30f;

inline const uint8_t* key_record(const AttendTask& task, int block) {
  return task.kv->base + (size_t)task.block_table[block] * task.kv->block_stride + task.kv_head * task.kv->key_record;
}

inline const uint8_t* value_record(const AttendTask& task, int block) {
  return task.kv->base + (size_t)task.block_table[block] * task.kv->block_stride + task.kv->values +
         task.kv_head * task.kv->value_record;
}

// Scores of kRows queries against the 16 keys of one block. Blocks lie anywhere, so the next one is asked for meanwhile.
template <int kType, int kRows>
void block_scores(const AttendTask& task, const float* queries, const uint8_t* record, const uint8_t* next, float* scores) {
  const int dim = task.kv->head_dim;
  constexpr int pair_bytes = 2 * kTokens * (kType == MLX_KV_F32 ? 4 : kType == MLX_KV_BF16 ? 2 : 1);
  for (int lane = 0; lane < kTokens; lane += L) {
    F even[kRows], odd[kRows];
    for (int r = 0; r < kRows; r++) even[r] = odd[r] = zero();
    for (int i = 0; i < dim; i += 2) {
      if (lane == 0) __builtin_prefetch(next + (i / 2) * pair_bytes);
      F first, second;
      if constexpr (kType == MLX_KV_BF16) {
        load_pairs((const uint16_t*)record + ((size_t)(i / 2) * kTokens + lane) * 2, first, second);
      } else if constexpr (kType == MLX_KV_F32) {
        first = load((const float*)record + (size_t)i * kTokens + lane);
        second = load((const float*)record + (size_t)(i + 1) * kTokens + lane);
      } else {
        first = load_int8((const int8_t*)record + (size_t)i * kTokens + lane);
        second = load_int8((const int8_t*)record + (size_t)(i + 1) * kTokens + lane);
      }
      for (int r = 0; r < kRows; r++) {
        even[r] = fma(first, splat(queries[r * task.query_stride + i]), even[r]);
        odd[r] = fma(second, splat(queries[r * task.query_stride + i + 1]), odd[r]);
      }
    }
    for (int r = 0; r < kRows; r++) {
      F score = add(even[r], odd[r]);
      if constexpr (kType == MLX_KV_INT8) score = mul(score, load((const float*)(record + (size_t)dim * kTokens) + lane));
      store(scores + r * kChunk + lane, score);
    }
  }
}

// sums[row][dim] += weights[row][token] * values[token][dim] for tokens [token_begin, token_end) of one block.
template <int kType, int kRows, int kVectors>
void block_values(const uint8_t* record, int dim, const float* weights, int token_begin, int token_end, float* sums, int column) {
  F total[kRows][kVectors];
  for (int r = 0; r < kRows; r++)
    for (int v = 0; v < kVectors; v++) total[r][v] = load(sums + (size_t)r * dim + column + v * L);
  const auto gain = [&](const F* values, int token) {
    for (int r = 0; r < kRows; r++) {
      const F weight = splat(weights[r * kChunk + token]);
      for (int v = 0; v < kVectors; v++) total[r][v] = fma(values[v], weight, total[r][v]);
    }
  };
  for (int token = token_begin; token < token_end; token++) {
    F values[kVectors], next[kVectors];
    if constexpr (kType == MLX_KV_BF16) {
      // Two tokens share a load. What lies beside the first or the last token may be anything, so it must not be used.
      for (int v = 0; v < kVectors; v++)
        load_pairs((const uint16_t*)record + ((size_t)(token / 2) * dim + column + v * L) * 2, values[v], next[v]);
      if (token % 2 == 0) {
        gain(values, token);
        if (++token == token_end) break;
      }
      gain(next, token);
    } else {
      for (int v = 0; v < kVectors; v++) {
        const size_t at = (size_t)token * dim + column + v * L;
        if constexpr (kType == MLX_KV_F32) {
          values[v] = load((const float*)record + at);
        } else {
          values[v] = load_int8((const int8_t*)record + at);
        }
      }
      gain(values, token);
    }
  }
  for (int r = 0; r < kRows; r++)
    for (int v = 0; v < kVectors; v++) store(sums + (size_t)r * dim + column + v * L, total[r][v]);
}

template <int kRows>
void chunk_scores(const AttendTask& task, const float* queries, int block_begin, int block_end, float* scores) {
  for (int block = block_begin; block < block_end; block++) {
    const uint8_t* record = key_record(task, block);
    const uint8_t* next = key_record(task, block + 1 < block_end ? block + 1 : block);
    float* target = scores + (size_t)(block - block_begin) * kTokens;
    switch (task.kv->k_type) {
      case MLX_KV_BF16:
        block_scores<MLX_KV_BF16, kRows>(task, queries, record, next, target);
        break;
      case MLX_KV_F32:
        block_scores<MLX_KV_F32, kRows>(task, queries, record, next, target);
        break;
      default:
        block_scores<MLX_KV_INT8, kRows>(task, queries, record, next, target);
    }
  }
}

// Turns a chunk's scores [0, count), of which [begin, end) are visible, into weights relative to the running maximum;
// rescales what was summed before. Nothing may be visible (begin >= end): a later chunk's rescaling then discards the chunk.
void soften(float* scores, int begin, int end, int count, float* maximum_score, float* weight_sum, float* sums, int dim) {
  begin = begin < count ? begin : count;
  end = end > begin ? end : begin;
  for (int i = 0; i < begin; i++) scores[i] = kMasked;
  for (int i = end; i < count; i++) scores[i] = kMasked;
  F peak = splat(*maximum_score);
  for (int i = 0; i < count; i += L) peak = max(peak, load(scores + i));
  const float top = maximum(peak);
  float rescale[L];
  store(rescale, exponential(splat(*maximum_score - top)));
  if (top > *maximum_score)
    for (int i = 0; i < dim; i++) sums[i] *= rescale[0];
  F total = zero();
  for (int i = 0; i < count; i += L) {
    const F weight = exponential(sub(load(scores + i), splat(top)));
    total = add(total, weight);
    store(scores + i, weight);
  }
  *weight_sum = (top > *maximum_score ? *weight_sum * rescale[0] : *weight_sum) + sum(total);
  *maximum_score = top;
}

template <int kType, int kRows>
void record_values(const uint8_t* record, int dim, const float* weights, int token_begin, int token_end, float* sums) {
  int column = 0;
  for (; column + kValueVectors * L <= dim; column += kValueVectors * L)
    block_values<kType, kRows, kValueVectors>(record, dim, weights, token_begin, token_end, sums, column);
  for (; column < dim; column += L) block_values<kType, kRows, 1>(record, dim, weights, token_begin, token_end, sums, column);
}

template <int kRows>
void chunk_values(const AttendTask& task, float* weights, int begin, int end, int chunk_start, float* sums) {
  const int dim = task.kv->head_dim;
  for (int block = begin / kTokens; block * kTokens < end; block++) {
    const uint8_t* record = value_record(task, block);
    if ((block + 1) * kTokens < end) __builtin_prefetch(value_record(task, block + 1));
    const int start = block * kTokens;
    const int token_begin = begin > start ? begin - start : 0, token_end = end - start < kTokens ? end - start : kTokens;
    float* block_weights = weights + (start - chunk_start);
    switch (task.kv->v_type) {
      case MLX_KV_BF16:
        record_values<MLX_KV_BF16, kRows>(record, dim, block_weights, token_begin, token_end, sums);
        break;
      case MLX_KV_F32:
        record_values<MLX_KV_F32, kRows>(record, dim, block_weights, token_begin, token_end, sums);
        break;
      default:
        for (int r = 0; r < kRows; r++)
          for (int t = token_begin; t < token_end; t++)
            block_weights[r * kChunk + t] *= ((const float*)(record + (size_t)dim * kTokens))[t];
        record_values<MLX_KV_INT8, kRows>(record, dim, block_weights, token_begin, token_end, sums);
    }
  }
}

template <int kRows>
void attend_rows(const AttendTask& task, int row) {
  const int dim = task.kv->head_dim;
  float* scores = task.scratch;
  float* sums = scores + kRows * kChunk;
  float top[kRows], weight[kRows];
  for (int r = 0; r < kRows; r++) top[r] = kMasked, weight[r] = 0.0f;
  for (int i = 0; i < kRows * dim; i++) sums[i] = 0.0f;
  const int first_limit = task.limit + row * task.limit_step, last_limit = first_limit + (kRows - 1) * task.limit_step;
  const auto start_of = [&](int limit) { return task.window && limit > task.window ? limit - task.window : 0; };
  const int first = start_of(first_limit);
  const int begin = task.begin > first ? task.begin : first, end = task.end < last_limit ? task.end : last_limit;
  const float* queries = task.queries + row * task.query_stride;
  for (int position = begin; position < end;) {
    const int base = position / kTokens * kTokens;
    const int stop = end < base + kChunk ? end : base + kChunk;
    const int blocks_end = (stop + kTokens - 1) / kTokens;
    chunk_scores<kRows>(task, queries, base / kTokens, blocks_end, scores);
    for (int r = 0; r < kRows; r++) {
      const int limit = first_limit + r * task.limit_step, start = start_of(limit);
      const int from = start > position ? start : position, to = limit < stop ? limit : stop;
      soften(scores + r * kChunk, from - base, to - base, blocks_end * kTokens - base, &top[r], &weight[r], sums + (size_t)r * dim,
             dim);
    }
    chunk_values<kRows>(task, scores, position, stop, base, sums);
    position = stop;
  }
  for (int r = 0; r < kRows; r++) {
    const float factor = task.maxima ? 1.0f : 1.0f / weight[r];
    float* out = task.out + (row + r) * task.out_stride;
    for (int i = 0; i < dim; i++) out[i] = sums[(size_t)r * dim + i] * factor;
    if (task.maxima) {
      task.maxima[(row + r) * task.partial_stride] = top[r];
      task.weights[(row + r) * task.partial_stride] = weight[r];
    }
  }
}

void attend(const AttendTask& task) {
  int row = 0;
  for (; row + 4 <= task.rows; row += 4) attend_rows<4>(task, row);
  switch (task.rows - row) {
    case 3:
      return attend_rows<3>(task, row);
    case 2:
      return attend_rows<2>(task, row);
    case 1:
      return attend_rows<1>(task, row);
    default:
      return;
  }
}

void merge(const float* outs, const float* maxima, const float* weights, int parts, int dim, float* out) {
  float top = kMasked, total = 0.0f;
  for (int p = 0; p < parts; p++) top = maxima[p] > top ? maxima[p] : top;
  for (int i = 0; i < dim; i++) out[i] = 0.0f;
  for (int p = 0; p < parts; p++) {
    float factor[L];
    store(factor, exponential(splat(maxima[p] - top)));
    total += weights[p] * factor[0];
    for (int i = 0; i < dim; i++) out[i] += outs[(size_t)p * dim + i] * factor[0];
  }
  for (int i = 0; i < dim; i++) out[i] /= total;
}

}  // namespace

// Attention of prompt tokens on AMX tiles: 32 queries of a head against chunks of bf16 keys and values.
//
// Key records are weight tiles as they lie in the pool; a value record is half a tile for every 16 dimensions. Weights of the
// softmax are rounded to bf16 like the values they multiply; sums are fp32.
#pragma once

#include "amx.h"
#include "attention.h"

namespace {

// Tiles 0-3: sums; 4: weights of a strip for 16 tokens; 6: 16 tokens x 16 dimensions of values.
constexpr TileShapes value_shapes() {
  TileShapes shapes;
  for (int tile = 0; tile < 4; tile++) shapes.set(tile, 16, 64);
  shapes.set(4, 16, 32);
  shapes.set(6, kTokens / 2, 64);
  return shapes;
}

// 2^x: the fraction by a polynomial with an error of 4e-6, far below the bf16 it is rounded to.
inline F power_of_two(F x) {
  const F fraction = _mm512_reduce_ps(x, 0x09);  // x - floor(x)
  F p = splat(0.01353417f);
  p = fma(p, fraction, splat(0.05201146f));
  p = fma(p, fraction, splat(0.24144276f));
  p = fma(p, fraction, splat(0.69300383f));
  p = fma(p, fraction, splat(1.0000026f));
  return _mm512_scalef_ps(p, x);  // scalef floors its exponent
}

struct TileAttention {
  const AttendTask& task;
  int dim, strips;
  uint16_t* queries;  // tiles [strips][dim / 32]
  float* scores;      // [32][kChunk]
  uint16_t* weights;  // tiles [strips][kChunk / 32]
  float* sums;        // [32][dim]
  uint16_t* tail;     // a value record with zeros where nothing was written yet
  float top[mlx::kAttendRows], total[mlx::kAttendRows];

  explicit TileAttention(const AttendTask& t) : task(t), dim(t.kv->head_dim), strips((t.rows + kStrip - 1) / kStrip) {
    scores = t.scratch;
    sums = scores + (size_t)mlx::kAttendRows * kChunk;
    weights = (uint16_t*)(sums + (size_t)mlx::kAttendRows * dim);
    queries = weights + (size_t)mlx::kAttendRows * kChunk;
    tail = queries + (size_t)mlx::kAttendRows * dim;
    for (int i = 0; i < strips * kStrip; i++) top[i] = kMasked, total[i] = 0.0f;
    for (int i = 0; i < strips * kStrip * dim; i++) sums[i] = 0.0f;
    load_queries();
  }

  // Scores come out in units of log 2, for power_of_two().
  void load_queries() {
    const F factor = splat(1.44269504f);
    for (int row = 0; row < strips * kStrip; row++) {
      uint16_t* target = queries + ((size_t)(row / kStrip) * (dim / kUnit) * kStrip + row % kStrip) * kUnit;
      // Rows beyond the last repeat it.
      const float* query = task.queries + (row < task.rows ? row : task.rows - 1) * task.query_stride;
      for (int i = 0; i < dim; i += L) store_bf16(target + i / kUnit * kTileElements + i % kUnit, mul(load(query + i), factor));
    }
  }

  void chunk_scores(int block_begin, int block_end) {
    static constexpr TileShapes shapes = bf16_shapes();
    use_shapes(shapes);
    const int units = dim / kUnit;
    for (int block = block_begin; block < block_end; block += 2) {
      const bool two = block + 1 < block_end;
      const uint16_t* first = (const uint16_t*)key_record(task, block);
      const uint16_t* second = two ? (const uint16_t*)key_record(task, block + 1) : first;
      bf16_product(strips > 1, two, queries, queries + (size_t)units * kTileElements, first, second, units,
                   false, scores + (block - block_begin) * kTokens, kChunk);
    }
  }

  // Softmax weights of one row over [0, count) of a chunk, of which [from, to) are visible.
  void soften_row(int row, int from, int to, int count) {
    const float* mine = scores + (size_t)row * kChunk;
    uint16_t* target = weights + ((size_t)(row / kStrip) * (kChunk / kUnit) * kStrip + row % kStrip) * kUnit;
    const bool all = from <= 0 && to >= count;
    const auto visible = [&](int i) {
      const unsigned until = to - i >= L ? 0xffffu : to > i ? (1u << (to - i)) - 1 : 0u;
      const unsigned before = from <= i ? 0u : from - i >= L ? 0xffffu : (1u << (from - i)) - 1;
      return (__mmask16)(until & ~before);
    };
    F peak = splat(top[row]);
    if (all) {
      for (int i = 0; i < count; i += L) peak = max(peak, load(mine + i));
    } else {
      for (int i = 0; i < count; i += L) peak = _mm512_mask_max_ps(peak, visible(i), peak, load(mine + i));
    }
    const float high = maximum(peak);
    const F reference = splat(high);
    F added = zero();
    const auto put = [&](int i, F weight) {
      added = add(added, weight);
      store_bf16(target + i / kUnit * kTileElements + i % kUnit, weight);
    };
    if (all) {
      for (int i = 0; i < count; i += L) put(i, power_of_two(sub(load(mine + i), reference)));
    } else {
      for (int i = 0; i < count; i += L) put(i, _mm512_maskz_mov_ps(visible(i), power_of_two(sub(load(mine + i), reference))));
    }
    if (high > top[row]) {
      const F rescale = power_of_two(splat(top[row] - high));
      total[row] *= _mm512_cvtss_f32(rescale);
      float* row_sums = sums + (size_t)row * dim;
      for (int i = 0; i < dim; i += L) store(row_sums + i, mul(load(row_sums + i), rescale));
    }
    total[row] += sum(added);
    top[row] = high;
  }

  // Values of a block; of one that is not full, the rest of the record may be anything and is replaced by zeros.
  const uint16_t* values_of(int block, int end) {
    const uint16_t* record = (const uint16_t*)value_record(task, block);
    const int filled = end - block * kTokens;
    if (filled >= kTokens) return record;
    for (int token = 0; token < kTokens; token++)
      for (int i = 0; i < dim; i++) {
        const size_t at = ((size_t)(token / 2) * dim + i) * 2 + token % 2;
        tail[at] = token < filled ? record[at] : 0;
      }
    return tail;
  }

  template <int kColumns>
  void column_values(const uint16_t* const* values, int blocks, int strip, int column) {
    float* target = sums + (size_t)strip * kStrip * dim + column;
    const long stride = dim * 4;
    tile_load<0>(target, stride);
    if (kColumns > 1) tile_load<1>(target + 16, stride);
    if (kColumns > 2) tile_load<2>(target + 32, stride);
    if (kColumns > 3) tile_load<3>(target + 48, stride);
    for (int block = 0; block < blocks; block++) {
      const uint16_t* record = values[block] + column * 2;
      tile_load<4>(weights + ((size_t)strip * (kChunk / kUnit) + block / 2) * kTileElements + block % 2 * kTokens, 64);
      tile_load<6>(record, stride);
      tile_dot_bf16<0, 4, 6>();
      if (kColumns > 1) tile_load<6>(record + 32, stride), tile_dot_bf16<1, 4, 6>();
      if (kColumns > 2) tile_load<6>(record + 64, stride), tile_dot_bf16<2, 4, 6>();
      if (kColumns > 3) tile_load<6>(record + 96, stride), tile_dot_bf16<3, 4, 6>();
    }
    tile_store<0>(target, stride);
    if (kColumns > 1) tile_store<1>(target + 16, stride);
    if (kColumns > 2) tile_store<2>(target + 32, stride);
    if (kColumns > 3) tile_store<3>(target + 48, stride);
  }

  void chunk_values(int block_begin, int block_end, int end) {
    static constexpr TileShapes shapes = value_shapes();
    use_shapes(shapes);
    const uint16_t* values[kChunk / kTokens];
    for (int block = block_begin; block < block_end; block++) values[block - block_begin] = values_of(block, end);
    const int blocks = block_end - block_begin;
    for (int strip = 0; strip < strips; strip++) {
      int column = 0;
      for (; column + 64 <= dim; column += 64) column_values<4>(values, blocks, strip, column);
      if (column < dim) column_values<2>(values, blocks, strip, column);
    }
  }

  void run() {
    const int last_limit = task.limit + (task.rows - 1) * task.limit_step;
    const int end = task.end < last_limit ? task.end : last_limit;
    const auto start_of = [&](int limit) { return task.window && limit > task.window ? limit - task.window : 0; };
    const int begin = task.begin > start_of(task.limit) ? task.begin : start_of(task.limit);
    for (int position = begin; position < end;) {
      const int base = position / kTokens * kTokens, stop = end < base + kChunk ? end : base + kChunk;
      const int first = base / kTokens, last = (stop + kTokens - 1) / kTokens;
      chunk_scores(first, last);
      for (int row = 0; row < strips * kStrip; row++) {
        const int limit = task.limit + (row < task.rows ? row : task.rows - 1) * task.limit_step, start = start_of(limit);
        soften_row(row, (start > position ? start : position) - base, (limit < stop ? limit : stop) - base,
                   (last - first) * kTokens);
      }
      chunk_values(first, last, stop);
      position = stop;
    }
    for (int row = 0; row < task.rows; row++) {
      const F factor = splat(1.0f / total[row]);
      for (int i = 0; i < dim; i += L) store(task.out + row * task.out_stride + i, mul(load(sums + (size_t)row * dim + i), factor));
    }
  }
};

void amx_attend(const AttendTask& task) {
  const KvLayer& kv = *task.kv;
  const bool tiles = kv.k_type == MLX_KV_BF16 && kv.v_type == MLX_KV_BF16 && kv.head_dim % kUnit == 0;
  if (!tiles || task.maxima || !task.limit_step || task.rows <= 8) return attend(task);
  TileAttention(task).run();
}

}  // namespace

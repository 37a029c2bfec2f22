#include "model.h"

#include <stdexcept>

namespace mlx {

size_t key_record_bytes(int type, int head_dim) {
  switch (type) {
    case MLX_KV_F32:
      return (size_t)head_dim * kTokens * 4;
    case MLX_KV_BF16:
      return (size_t)head_dim * kTokens * 2;
    default:
      return (size_t)head_dim * kTokens + kTokens * sizeof(float);
  }
}

// The layouts differ, their sizes do not.
size_t value_record_bytes(int type, int head_dim) { return key_record_bytes(type, head_dim); }

size_t kv_block_bytes(const mlx_config& c) {
  return (size_t)c.layers * c.kv_heads * (key_record_bytes(c.k_type, c.head_dim) + value_record_bytes(c.v_type, c.head_dim));
}

namespace {

void check(const mlx_config& c) {
  const auto require = [](bool holds, const char* message) {
    if (!holds) throw std::invalid_argument(message);
  };
  require(c.layers > 0 && c.hidden > 0 && c.intermediate > 0 && c.vocab > 0, "a model dimension is not positive");
  require(c.heads > 0 && c.kv_heads > 0 && c.heads % c.kv_heads == 0, "key/value heads must divide the heads");
  require(c.head_dim > 0 && c.head_dim % 16 == 0 && c.head_dim <= kMaxHeadDim, "head_dim must be a multiple of 16 up to 512");
  require(c.heads / c.kv_heads <= kAttendRows, "more than 32 query heads share a key/value head");
  require(c.threads > 0 && c.block_count > 0, "threads and block_count must be positive");
  require(c.k_type >= 0 && c.k_type <= MLX_KV_INT8 && c.v_type >= 0 && c.v_type <= MLX_KV_INT8, "unknown KV type");
  require(level_available(c.level), "this processor or this build lacks the kernel level");
}

const mlx_config& checked(const mlx_config& config) {
  check(config);
  return config;
}

}  // namespace

Model::Model(const mlx_config& given)
    : config(checked(given)),
      windows(given.windows, given.windows + given.layers),
      rotates(given.rotates, given.rotates + given.layers),
      kernels(kernels_of(given.level)),
      team(given.threads),
      layers(given.layers),
      pool(kv_block_bytes(given) * given.block_count),
      members(given.threads) {
  const size_t key = key_record_bytes(config.k_type, config.head_dim), value = value_record_bytes(config.v_type, config.head_dim);
  for (int i = 0; i < config.threads; i++) members[i].index = i;
  for (int i = 0; i < config.layers; i++) {
    KvLayer& kv = layers[i].kv;
    kv.base = pool.data() + (size_t)i * config.kv_heads * (key + value);
    kv.block_stride = kv_block_bytes(config);
    kv.key_record = key;
    kv.value_record = value;
    kv.values = config.kv_heads * key;
    kv.k_type = config.k_type;
    kv.v_type = config.v_type;
    kv.head_dim = config.head_dim;
    layers[i].window = windows[i];
    layers[i].rotates = rotates[i];
  }
}

int Linear::rank() const {
  int total = 0;
  for (const Update& update : updates) total += update.rank;
  return total;
}

std::string Model::missing() const {
  static const char* const names[] = {"q", "k", "v", "o", "gate", "up", "down"};
  if (!embedding.matrix.data) return "embedding";
  if (!head.matrix.data) return "head";
  if (!final_norm) return "final norm";
  for (size_t i = 0; i < layers.size(); i++) {
    for (int slot = 0; slot < MLX_MATRIX_SLOTS; slot++)
      if (!layers[i].linears[slot].matrix.data) return "layer " + std::to_string(i) + " " + names[slot];
    if (!layers[i].vectors[MLX_INPUT_NORM] || !layers[i].vectors[MLX_MLP_NORM]) return "layer " + std::to_string(i) + " norm";
  }
  return "";
}

void OperandBuffer::reserve(int rows, int width, int forms) {
  // Kernels that work on 16 rows at a time read whole tiles.
  const size_t count = (size_t)((rows + 15) / 16 * 16) * ((width + kUnit - 1) / kUnit * kUnit);
  if (forms & kFormInt8) {
    codes_.reserve(count);
    scales_.reserve(count / kUnit);
    sums_.reserve(count / kUnit);
  }
  if (forms & kFormHalves) half_sums_.reserve(count / 16);
  if (forms & kFormDense) dense_.reserve(count);
  if (forms & kFormTiles) tiles_.reserve(count);
}

Operand OperandBuffer::view(int width) const {
  return {(width + kUnit - 1) / kUnit * kUnit, codes_.get(), scales_.get(), sums_.get(), half_sums_.get(), dense_.get(), tiles_.get()};
}

}  // namespace mlx

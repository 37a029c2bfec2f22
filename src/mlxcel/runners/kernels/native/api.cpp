#include "api.h"

#include <string.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>

#include "model.h"
#include "pack.h"

struct mlx_model : mlx::Model {
  using mlx::Model::Model;
};

namespace {

thread_local std::string last_error;

// Runs body; an exception becomes the error text and -1.
template <class Body>
int32_t guarded(Body body) {
  try {
    body();
    return 0;
  } catch (const std::bad_alloc&) {
    last_error = "out of memory";
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return -1;
}

void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

// Expected [out, in] of a slot.
void expected_shape(const mlx_config& c, int layer, int slot, int* out, int* in) {
  const int q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  if (layer == MLX_GLOBAL) {
    *out = c.vocab, *in = c.hidden;
    return;
  }
  const int outs[] = {q, kv, kv, c.hidden, c.intermediate, c.intermediate, c.hidden};
  const int ins[] = {c.hidden, c.hidden, c.hidden, q, c.hidden, c.hidden, c.intermediate};
  *out = outs[slot], *in = ins[slot];
}

mlx::Linear& linear_at(mlx_model& model, int layer, int slot) {
  require(layer >= MLX_GLOBAL && layer < model.config.layers, "no such layer");
  require(slot >= 0 && slot < (layer == MLX_GLOBAL ? 2 : MLX_MATRIX_SLOTS), "no such matrix slot");
  if (layer == MLX_GLOBAL) return slot == MLX_EMBEDDING ? model.embedding : model.head;
  return model.layers[layer].linears[slot];
}

int vector_size(const mlx_config& c, int layer, int slot) {
  return layer == MLX_GLOBAL || slot == MLX_INPUT_NORM || slot == MLX_MLP_NORM ? c.hidden : c.head_dim;
}

}  // namespace

extern "C" {

int32_t mlx_abi(void) { return MLX_ABI; }

const char* mlx_last_error(void) { return last_error.c_str(); }

const char* mlx_level_name(int32_t level) {
  static const char* const names[] = {"portable", "neon", "avx2", "avx-vnni", "avx512", "amx"};
  return level >= 0 && level < MLX_LEVEL_COUNT ? names[level] : "unknown";
}

int32_t mlx_level_available(int32_t level) { return mlx::level_available(level); }

mlx_model* mlx_model_create(const mlx_config* config) {
  mlx_model* model = nullptr;
  guarded([&] { model = new mlx_model(*config); });
  return model;
}

void mlx_model_destroy(mlx_model* model) { delete model; }

int32_t mlx_model_set_matrix(mlx_model* model, int32_t layer, int32_t slot, const mlx_matrix* source) {
  return guarded([&] {
    mlx::Linear& target = linear_at(*model, layer, slot);
    int out, in;
    expected_shape(model->config, layer, slot, &out, &in);
    require(source->out == out && source->in == in, "a matrix has another shape than its place in the model");
    target.matrix = mlx::pack(*source, model->arena, model->team);
  });
}

int32_t mlx_model_set_vector(mlx_model* model, int32_t layer, int32_t slot, const float* values, int32_t count) {
  return guarded([&] {
    require(layer >= MLX_GLOBAL && layer < model->config.layers, "no such layer");
    require(slot >= 0 && slot < (layer == MLX_GLOBAL ? 1 : MLX_VECTOR_SLOTS), "no such vector slot");
    require(count == vector_size(model->config, layer, slot), "a vector has another size than its place in the model");
    float* copy = (float*)model->arena.take(count * sizeof(float));
    memcpy(copy, values, count * sizeof(float));
    (layer == MLX_GLOBAL ? model->final_norm : model->layers[layer].vectors[slot]) = copy;
  });
}

int32_t mlx_model_tie_head(mlx_model* model) {
  return guarded([&] {
    require(model->embedding.matrix.data, "the embedding is not set yet");
    model->head = model->embedding;
  });
}

int32_t mlx_model_set_update(mlx_model* model, int32_t adapter, int32_t layer, int32_t slot, int32_t rank, const float* down,
                             const float* up) {
  return guarded([&] {
    require(layer != MLX_GLOBAL, "adapters update the matrices of layers only");
    mlx::Linear& linear = linear_at(*model, layer, slot);
    require(linear.matrix.data, "the matrix to update is not set yet");
    require(adapter >= 0 && adapter <= model->adapters && rank > 0, "adapters are numbered without gaps and have a positive rank");
    for (const mlx::Update& update : linear.updates) require(update.adapter != adapter, "the adapter updates this matrix already");
    linear.updates.push_back(mlx::pack_update(linear.matrix, adapter, rank, down, up, model->arena));
    model->adapters = std::max(model->adapters, adapter + 1);
    model->widest_rank = std::max(model->widest_rank, linear.rank());
  });
}

int32_t mlx_model_ready(mlx_model* model) {
  return guarded([&] {
    const std::string missing = model->missing();
    require(missing.empty(), "a part of the model was never set: " + missing);
    model->ready = true;
  });
}

int32_t mlx_model_forward(mlx_model* model, const mlx_batch* batch, float* logits) {
  return guarded([&] {
    require(model->ready, "the model is not complete");
    mlx::forward(*model, *batch, logits);
  });
}

void* mlx_model_block(mlx_model* model, int32_t block) {
  if (block < 0 || block >= model->config.block_count) return nullptr;
  return model->pool.data() + (size_t)block * mlx::kv_block_bytes(model->config);
}

int64_t mlx_model_weight_bytes(const mlx_model* model) { return (int64_t)model->arena.used_bytes(); }

int64_t mlx_kv_bytes_per_token(const mlx_config* config) { return (int64_t)(mlx::kv_block_bytes(*config) / mlx::kTokens); }

int32_t mlx_linear(int32_t level, int32_t threads, const mlx_matrix* source, const float* x, int32_t rows, float* y, int32_t repeats,
                   double* best_seconds) {
  return guarded([&] {
    require(mlx::level_available(level), "this processor or this build lacks the kernel level");
    mlx::Team team(threads);
    mlx::Arena arena;
    const mlx::Matrix matrix = mlx::pack(*source, arena, team);
    *best_seconds = mlx::time_linear(*mlx::kernels_of(level), team, matrix, x, rows, y, repeats);
  });
}

}  // extern "C"

// The C interface of the CPU decoder: plain structs and raw pointers, so that the library depends on no other C++ ABI.
//
// All functions return 0 on success and -1 on failure; mlx_last_error() then tells why (per thread). A model is used by one
// thread at a time. Arrays are dense and row-major unless said otherwise.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MLX_ABI 2
#define MLX_BLOCK_TOKENS 16

#if defined(__GNUC__)
#define MLX_EXPORT __attribute__((visibility("default")))
#else
#define MLX_EXPORT
#endif

typedef struct mlx_model mlx_model;

enum mlx_level {
  MLX_PORTABLE = 0,
  MLX_NEON = 1,      // Armv8.2 dot products
  MLX_AVX2 = 2,      // AVX2, FMA, F16C
  MLX_AVX_VNNI = 3,  // the same with AVX-VNNI dot products
  MLX_AVX512 = 4,    // AVX-512 F/BW/DQ/VL with VNNI dot products
  MLX_AMX = 5,       // the same with AMX int8 and bf16 tiles
  MLX_LEVEL_COUNT = 6,
};

enum mlx_format {
  MLX_U4 = 0,    // affine, codes 0..15
  MLX_U8 = 1,    // affine, codes 0..255
  MLX_BF16 = 2,  // dense
  MLX_F16 = 3,
  MLX_F32 = 4,
};

enum mlx_kv_type { MLX_KV_BF16 = 0, MLX_KV_F32 = 1, MLX_KV_INT8 = 2 };

enum mlx_activation { MLX_SILU = 0, MLX_GELU = 1, MLX_GELU_TANH = 2, MLX_RELU2 = 3 };

enum mlx_matrix_slot { MLX_Q = 0, MLX_K = 1, MLX_V = 2, MLX_O = 3, MLX_GATE = 4, MLX_UP = 5, MLX_DOWN = 6, MLX_MATRIX_SLOTS = 7 };
enum mlx_vector_slot {
  MLX_INPUT_NORM = 0,
  MLX_MLP_NORM = 1,
  MLX_Q_NORM = 2,
  MLX_K_NORM = 3,
  MLX_VECTOR_SLOTS = 4,
};
// With layer -1, matrix slots 0 and 1 are the embedding and the vocabulary projection, vector slot 0 the final norm.
enum { MLX_EMBEDDING = 0, MLX_HEAD = 1, MLX_FINAL_NORM = 0, MLX_GLOBAL = -1 };

typedef struct {
  int32_t level;    // enum mlx_level; must be available
  int32_t threads;  // >= 1
  int32_t layers, hidden, intermediate, vocab;
  int32_t heads, kv_heads, head_dim;
  int32_t activation;  // enum mlx_activation
  int32_t block_count;
  int32_t k_type, v_type;      // enum mlx_kv_type
  const int32_t* windows;      // [layers]; 0 is unlimited
  const uint8_t* rotates;      // [layers]; 0: no positions in this layer
  float norm_eps;
  float attention_scale, embedding_multiplier, residual_multiplier, logit_multiplier;
} mlx_config;

// A matrix [out, in] as a checkpoint has it. Affine: w = scale * code + minimum, one pair per `group` inputs.
typedef struct {
  int32_t format;  // enum mlx_format
  int32_t out, in;
  int32_t group;         // affine only: 16, 32, 64 or 128
  const void* data;      // codes uint8 [out, in], or the dense elements
  const float* scales;   // [out, in / group]
  const float* minimums; // [out, in / group]
  const float* bias;     // [out] or NULL
} mlx_matrix;

typedef struct {
  int32_t tokens, rows, max_blocks, outputs;
  const int32_t* token_ids;      // [tokens]
  const int32_t* positions;      // [tokens]
  const int32_t* row_starts;     // [rows + 1]
  const int32_t* block_tables;   // [rows, max_blocks]
  const int32_t* logit_indices;  // [outputs]
  const float* cosines;          // [positions, rotary_half]
  const float* sines;
  int32_t rotary_half;
  int32_t position_count;  // rows of the two tables
  int32_t adapters;        // how many adapters the model has
  const float* adapter_scales;  // [rows, adapters], or NULL when no row uses any
} mlx_batch;

MLX_EXPORT int32_t mlx_abi(void);
MLX_EXPORT const char* mlx_last_error(void);
MLX_EXPORT const char* mlx_level_name(int32_t level);
// 1 when this build has the level and this processor can run it.
MLX_EXPORT int32_t mlx_level_available(int32_t level);

MLX_EXPORT mlx_model* mlx_model_create(const mlx_config* config);
MLX_EXPORT void mlx_model_destroy(mlx_model* model);
// Copies and repacks. `layer` -1 addresses the global slots.
MLX_EXPORT int32_t mlx_model_set_matrix(mlx_model* model, int32_t layer, int32_t slot, const mlx_matrix* source);
MLX_EXPORT int32_t mlx_model_set_vector(mlx_model* model, int32_t layer, int32_t slot, const float* values, int32_t count);
// The embedding doubles as vocabulary projection.
MLX_EXPORT int32_t mlx_model_tie_head(mlx_model* model);
// A low-rank update of one matrix: it becomes matrix + scale * up * down, with each row's own scale. `down` is
// [rank, in], `up` [out, rank]. Adapters are numbered from 0, without gaps, and each updates a matrix at most once.
MLX_EXPORT int32_t mlx_model_set_update(mlx_model* model, int32_t adapter, int32_t layer, int32_t slot, int32_t rank,
                                        const float* down, const float* up);
// Checks that every slot is filled.
MLX_EXPORT int32_t mlx_model_ready(mlx_model* model);
// One step. Writes logits [outputs, vocab].
MLX_EXPORT int32_t mlx_model_forward(mlx_model* model, const mlx_batch* batch, float* logits);
// Keys and values of all layers of one block: 16 * mlx_kv_bytes_per_token() bytes, laid out alike at every level.
MLX_EXPORT void* mlx_model_block(mlx_model* model, int32_t block);
MLX_EXPORT int64_t mlx_model_weight_bytes(const mlx_model* model);
MLX_EXPORT int64_t mlx_kv_bytes_per_token(const mlx_config* config);

// y [rows, out] = x [rows, in] * w^T + bias, for tests and benchmarks of one matrix.
MLX_EXPORT int32_t mlx_linear(int32_t level, int32_t threads, const mlx_matrix* source, const float* x, int32_t rows, float* y,
                              int32_t repeats, double* best_seconds);

#ifdef __cplusplus
}
#endif

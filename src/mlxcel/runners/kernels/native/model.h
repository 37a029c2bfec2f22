// A decoder: its weights, its KV pool and the buffers of a step.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "layout.h"
#include "memory.h"
#include "product.h"
#include "team.h"

namespace mlx {

// A LoRA update of a matrix.
struct Update {
  int adapter, rank;
  const float* down;  // [rank, padded_in]
  const float* up;    // [rank, blocks * 16]: transposed, so that a task reads its columns in a row
};

struct Linear {
  Matrix matrix = {};
  std::vector<Update> updates;

  int rank() const;  // of all updates together
};

struct Layer {
  Linear linears[MLX_MATRIX_SLOTS];
  const float* vectors[MLX_VECTOR_SLOTS] = {};
  KvLayer kv = {};
  int window = 0;
  bool rotates = true;
};

// Memory for one operand at a time.
class OperandBuffer {
 public:
  // Room for `rows` rows of up to `width` inputs in the given forms.
  void reserve(int rows, int width, int forms);
  // The operand of rows that are `width` wide.
  Operand view(int width) const;

 private:
  Buffer<int8_t> codes_;
  Buffer<float> scales_, sums_, half_sums_, dense_;
  Buffer<uint16_t> tiles_;
};

// What one member of the team works with.
struct Member {
  int index;
  OperandBuffer operand;   // of steps with few rows, which every member prepares for itself
  Buffer<float> scratch;   // one row
  Buffer<float> merged;    // one row of attention results
  Buffer<float> attention;
  ProductMemory product;
  Buffer<float> low;  // of the private operand's rows, see Step::operand
};

struct Model {
  explicit Model(const mlx_config& config);

  mlx_config config;
  std::vector<int32_t> windows;
  std::vector<uint8_t> rotates;
  const Kernels* kernels;
  Team team;
  Arena arena;
  std::vector<Layer> layers;
  Linear embedding, head;
  int adapters = 0;
  int widest_rank = 0;  // of any linear
  const float* final_norm = nullptr;
  Pages pool;
  std::vector<Member> members;

  // Of a step, shared by the members.
  OperandBuffer operand;
  Buffer<float> low;
  Buffer<float> hidden;     // [tokens, hidden]
  Buffer<float> queries;    // [tokens, heads * head_dim]
  Buffer<float> attended;   // [tokens, heads * head_dim]
  Buffer<float> activated;  // [tokens, intermediate]
  Buffer<float> partials, partial_maxima, partial_weights;

  // Name of the first slot that was never set, or empty.
  std::string missing() const;
  bool ready = false;
};

size_t key_record_bytes(int type, int head_dim);
size_t value_record_bytes(int type, int head_dim);
size_t kv_block_bytes(const mlx_config& config);

// One step; throws std::invalid_argument when the batch does not fit the model.
void forward(Model& model, const mlx_batch& batch, float* logits);

// y = x * matrix^T + bias, `repeats` times; the shortest time in seconds.
double time_linear(const Kernels& kernels, Team& team, const Matrix& matrix, const float* x, int rows, float* y, int repeats);

const Kernels* kernels_of(int level);
bool level_available(int level);

}  // namespace mlx

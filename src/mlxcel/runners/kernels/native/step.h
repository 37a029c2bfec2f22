// One forward pass, run by all members of the team side by side.
#pragma once

#include <vector>

#include "model.h"

namespace mlx {

// Throws std::invalid_argument when a batch does not fit the model.
void check_batch(const Model& model, const mlx_batch& batch);

// Attention of a tile of prompt tokens of one query head over their whole context, or of one token's query heads of one
// key/value head over a part of it.
struct AttendItem {
  bool tile;
  int row;           // of the batch
  int token, count;  // first token and their number
  int head;          // query head of a tile, key/value head of a part
  int begin, end;    // positions
  int partial;       // where the first query head's result of this part goes; -1: the result is whole
};

// How a batch is cut into work; the same for every layer.
class Plan {
 public:
  Plan(const Model& model, const mlx_batch& batch);

  // Number of context parts of a token that is attended in parts, else 1.
  int parts(int token) const { return parts_[token]; }
  // First partial result of a token's head 0; its parts lie side by side, heads follow each other.
  int first_partial(int token) const { return first_partial_[token]; }
  int row_of(int token) const { return row_of_[token]; }
  const std::vector<AttendItem>& items() const { return items_; }
  int partial_count() const { return partial_count_; }

 private:
  void deal(int members);
  void add_parts(const Model& model, const mlx_batch& batch, int row, int token);

  std::vector<int> row_of_, parts_, first_partial_;
  std::vector<AttendItem> items_;
  int partial_count_ = 0;
};

// The rows that a part of a step works on: all tokens of the batch, or those whose logits are wanted.
struct Rows {
  int count;
  const int32_t* tokens;  // flat token index of each row; nullptr: row i is token i
  float* hidden;          // [count, hidden]

  int token(int row) const { return tokens ? tokens[row] : row; }
};

// What linears read: the operand, and for each of them its adapters' inner results, [linear][row][widest rank], or nullptr.
struct Input {
  Operand x;
  const float* low;
};

class Step {
 public:
  Step(Model& model, const mlx_batch& batch, float* logits);
  void run(int member);

 private:
  void embed(Member& me);
  void attention_inputs(const Layer& layer, const Rows& rows, Member& me);
  void finish_heads(const Layer& layer, int slot, int head, int row_begin, int rows, float* heads);
  void attend(const Layer& layer, bool only_outputs, Member& me);
  const float* attended_row(int token, Member& me) const;
  void keep_outputs(Member& me);
  void add(const Linear& linear, const Input& input, const Rows& rows, Member& me);
  void gate(const Layer& layer, const Rows& rows, Member& me);
  void project_logits(const Rows& rows, Member& me);

  // Prepares what `linears` read from rows; row_at(row) is where a row is.
  template <class RowAt>
  Input input(std::initializer_list<const Linear*> linears, const Rows& rows, const float* norm, Member& me, RowAt row_at);
  Input hidden_input(std::initializer_list<const Linear*> linears, const Rows& rows, const float* norm, Member& me);
  void shrink(std::initializer_list<const Linear*> linears, const Rows& rows, int row, const float* x, float* low) const;
  // Adds the adapters' share to `count` rows of a product's columns; `index`: which of the input's linears.
  void expand(const Linear& linear, int index, const Input& input, const Rows& rows, int row, int count, int column, int stride,
              float* sums) const;
  float adapter_scale(int token, int adapter) const {
    return batch_.adapter_scales[(size_t)plan_.row_of(token) * batch_.adapters + adapter];
  }
  int task_blocks(const Matrix& matrix, int rows) const;
  int claim(const Member& me, int tasks) const { return model_.team.claim(me.index, tasks); }

  Model& model_;
  const mlx_config& config_;
  const mlx_batch& batch_;
  const Kernels& kernels_;
  Plan plan_;
  float* logits_;
  long activated_stride_;
  int forms_ = 0, widest_ = 0;
  float *hidden_, *kept_, *queries_, *attended_, *activated_, *partials_, *maxima_, *weights_;
};

}  // namespace mlx

#include "step.h"

#include <string.h>

#include <algorithm>

namespace mlx {

namespace {

// With so few rows every member prepares the whole operand for itself, which costs less than meeting at a barrier.
constexpr int kPrivateRows = 4;
// Tasks per member of a product. With tiles a task reads all activations once, so fewer and larger ones are better.
constexpr int kTasksPerMember = 8, kTileTasksPerMember = 3;
constexpr int kMaxTaskBlocks = 8;
constexpr int kMaxInputs = 3;  // linears that read one operand

}  // namespace

Step::Step(Model& model, const mlx_batch& batch, float* logits)
    : model_(model), config_(model.config), batch_(batch), kernels_(*model.kernels), plan_(model, batch), logits_(logits) {
  const size_t tokens = batch.tokens, width = (size_t)config_.heads * config_.head_dim;
  hidden_ = model.hidden.reserve((tokens + batch.outputs) * config_.hidden);
  kept_ = hidden_ + tokens * config_.hidden;
  queries_ = model.queries.reserve(tokens * width);
  attended_ = model.attended.reserve(tokens * width);
  activated_stride_ = (config_.intermediate + kBlock - 1) / kBlock * kBlock;
  activated_ = model.activated.reserve(tokens * activated_stride_);
  partials_ = model.partials.reserve((size_t)plan_.partial_count() * config_.head_dim);
  maxima_ = model.partial_maxima.reserve(plan_.partial_count());
  weights_ = model.partial_weights.reserve(plan_.partial_count());
  const auto needs = [&](const Linear& linear, int rows) { forms_ |= kernels_.operand_form(linear.matrix, rows); };
  needs(model.head, batch.outputs);
  for (const Layer& layer : model.layers)
    for (const Linear& linear : layer.linears)
      for (int rows : {batch.tokens, batch.outputs}) needs(linear, rows);
  if (batch.adapter_scales) forms_ |= kFormDense;
  widest_ = std::max({config_.hidden, config_.intermediate, (int)width});
  model.operand.reserve(batch.tokens, widest_, forms_);
  model.low.reserve(tokens * kMaxInputs * model.widest_rank);
}

void Step::run(int member) {
  Member& me = model_.members[member];
  me.attention.reserve(attend_scratch_floats());
  me.scratch.reserve(widest_ + kUnit);
  me.merged.reserve((size_t)config_.heads * config_.head_dim);
  me.operand.reserve(std::min(batch_.tokens, kPrivateRows), widest_, forms_);
  me.low.reserve((size_t)kPrivateRows * kMaxInputs * model_.widest_rank);
  kernels_.begin();
  embed(me);
  Rows rows = {batch_.tokens, nullptr, hidden_};
  for (int i = 0; i < config_.layers && rows.count; i++) {
    const Layer& layer = model_.layers[i];
    const bool last = i + 1 == config_.layers;
    attention_inputs(layer, rows, me);
    attend(layer, last, me);
    if (last && batch_.outputs < batch_.tokens) {
      // What follows the last attention matters only for the rows whose logits are wanted.
      keep_outputs(me);
      rows = {batch_.outputs, batch_.logit_indices, kept_};
      if (!rows.count) break;
    }
    const Linear &o = layer.linears[MLX_O], &down = layer.linears[MLX_DOWN];
    add(o, input({&o}, rows, nullptr, me, [&](int row) { return attended_row(rows.token(row), me); }), rows, me);
    gate(layer, rows, me);
    add(down, input({&down}, rows, nullptr, me, [&](int row) { return activated_ + row * activated_stride_; }), rows, me);
  }
  if (rows.count && batch_.outputs) project_logits(rows, me);
  kernels_.end();
}

void Step::embed(Member& me) {
  for (int token; (token = claim(me, batch_.tokens)) >= 0;)
    kernels_.embed(model_.embedding.matrix, batch_.token_ids[token], config_.embedding_multiplier,
                   hidden_ + (size_t)token * config_.hidden);
  model_.team.barrier();
}

template <class RowAt>
Input Step::input(std::initializer_list<const Linear*> linears, const Rows& rows, const float* norm, Member& me, RowAt row_at) {
  int forms = 0;
  bool adapted = false;
  for (const Linear* linear : linears) {
    forms |= kernels_.operand_form(linear->matrix, rows.count);
    adapted |= batch_.adapter_scales && !linear->updates.empty();
  }
  if (adapted) forms |= kFormDense;
  const int width = (*linears.begin())->matrix.in;
  const bool shared = rows.count > kPrivateRows;
  const Operand x = (shared ? model_.operand : me.operand).view(width);
  float* low = (shared ? model_.low : me.low).get();
  const auto prepare = [&](int row) {
    kernels_.prepare(row_at(row), width, norm, config_.norm_eps, forms, x, row, me.scratch.get());
    if (adapted) shrink(linears, rows, row, x.dense + (size_t)row * x.width, low);
  };
  if (shared) {
    for (int row; (row = claim(me, rows.count)) >= 0;) prepare(row);
    model_.team.barrier();
  } else {
    for (int row = 0; row < rows.count; row++) prepare(row);
  }
  return {x, adapted ? low : nullptr};
}

Input Step::hidden_input(std::initializer_list<const Linear*> linears, const Rows& rows, const float* norm, Member& me) {
  return input(linears, rows, norm, me, [&](int row) { return rows.hidden + (size_t)row * config_.hidden; });
}

void Step::shrink(std::initializer_list<const Linear*> linears, const Rows& rows, int row, const float* x, float* low) const {
  int index = 0;
  for (const Linear* linear : linears) {
    float* mine = low + ((size_t)index++ * rows.count + row) * model_.widest_rank;
    for (const Update& update : linear->updates) {
      const float scale = adapter_scale(rows.token(row), update.adapter);
      if (scale != 0.0f) kernels_.shrink(x, linear->matrix.padded_in, update.down, update.rank, scale, mine);
      mine += update.rank;
    }
  }
}

void Step::expand(const Linear& linear, int index, const Input& input, const Rows& rows, int row, int count, int column, int stride,
                  float* sums) const {
  if (!input.low) return;
  for (int i = 0; i < count; i++, sums += stride) {
    const float* mine = input.low + ((size_t)index * rows.count + row + i) * model_.widest_rank;
    for (const Update& update : linear.updates) {
      const long up_stride = (long)linear.matrix.blocks * kBlock;
      if (adapter_scale(rows.token(row + i), update.adapter) != 0.0f)
        kernels_.expand(mine, update.rank, update.up + column, up_stride, stride, sums);
      mine += update.rank;
    }
  }
}

int Step::task_blocks(const Matrix& matrix, int rows) const {
  const bool tiles = kernels_.operand_form(matrix, rows) & kFormTiles;
  const int even = matrix.blocks / (model_.team.members() * (tiles ? kTileTasksPerMember : kTasksPerMember));
  return std::clamp(even / 2 * 2, 2, kMaxTaskBlocks);
}

void Step::attention_inputs(const Layer& layer, const Rows& rows, Member& me) {
  const int heads = config_.heads, kv_heads = config_.kv_heads, blocks = config_.head_dim / kBlock;
  const Linear* l = layer.linears;
  const Input input = hidden_input({&l[MLX_Q], &l[MLX_K], &l[MLX_V]}, rows, layer.vectors[MLX_INPUT_NORM], me);
  for (int task; (task = claim(me, heads + 2 * kv_heads)) >= 0;) {
    const int slot = task < heads ? MLX_Q : task < heads + kv_heads ? MLX_K : MLX_V;
    const int head = slot == MLX_Q ? task : (task - heads) % kv_heads, begin = head * blocks;
    multiply(kernels_, {&l[slot].matrix}, input.x, rows.count, begin, begin + blocks, me.product,
             [&](int row, int count, float* const* sums, int stride) {
               expand(l[slot], slot - MLX_Q, input, rows, row, count, begin * kBlock, stride, sums[0]);
               finish_heads(layer, slot, head, row, count, sums[0]);
             });
  }
  model_.team.barrier();
}

void Step::finish_heads(const Layer& layer, int slot, int head, int row_begin, int rows, float* heads) {
  const Matrix& matrix = layer.linears[slot].matrix;
  HeadTask task = {};
  task.head_dim = config_.head_dim;
  task.eps = config_.norm_eps;
  task.bias = matrix.bias ? matrix.bias + (size_t)head * config_.head_dim : nullptr;
  if (slot != MLX_V) task.norm = layer.vectors[slot == MLX_Q ? MLX_Q_NORM : MLX_K_NORM];
  const bool rotates = layer.rotates && slot != MLX_V;
  task.rotary_half = batch_.rotary_half;
  for (int i = 0; i < rows; i++, heads += config_.head_dim) {
    const int token = row_begin + i, position = batch_.positions[token];
    if (rotates) {
      task.cosines = batch_.cosines + (size_t)position * batch_.rotary_half;
      task.sines = batch_.sines + (size_t)position * batch_.rotary_half;
    }
    if (slot == MLX_Q) {
      kernels_.query_head(task, heads, config_.attention_scale, queries_ + ((size_t)token * config_.heads + head) * config_.head_dim);
      continue;
    }
    const int block = batch_.block_tables[(size_t)plan_.row_of(token) * batch_.max_blocks + position / kTokens];
    uint8_t* records = layer.kv.base + block * layer.kv.block_stride;
    if (slot == MLX_K) {
      kernels_.key_head(task, heads, records + head * layer.kv.key_record, layer.kv.k_type, position % kTokens);
    } else {
      kernels_.value_head(task, heads, records + layer.kv.values + head * layer.kv.value_record, layer.kv.v_type,
                          position % kTokens);
    }
  }
}

void Step::attend(const Layer& layer, bool only_outputs, Member& me) {
  const int group = config_.heads / config_.kv_heads, dim = config_.head_dim;
  const long stride = (long)config_.heads * dim;
  const int32_t* outputs_end = batch_.logit_indices + batch_.outputs;
  AttendTask task = {};
  task.kv = &layer.kv;
  task.window = layer.window;
  task.scratch = me.attention.get();
  for (int index; (index = claim(me, (int)plan_.items().size())) >= 0;) {
    const AttendItem& item = plan_.items()[index];
    if (only_outputs) {
      const int32_t* wanted = std::lower_bound(batch_.logit_indices, outputs_end, item.token);
      if (wanted == outputs_end || *wanted >= item.token + item.count) continue;
    }
    const size_t first = (size_t)item.token * stride + (size_t)(item.tile ? item.head : item.head * group) * dim;
    task.block_table = batch_.block_tables + (size_t)item.row * batch_.max_blocks;
    task.kv_head = item.tile ? item.head / group : item.head;
    task.queries = queries_ + first;
    task.query_stride = item.tile ? stride : dim;
    task.rows = item.tile ? item.count : group;
    task.limit = batch_.positions[item.token] + 1;
    task.limit_step = item.tile ? 1 : 0;
    task.begin = item.begin;
    task.end = item.end;
    if (item.partial < 0) {
      task.out = attended_ + first;
      task.out_stride = task.query_stride;
      task.maxima = task.weights = nullptr;
    } else {
      task.partial_stride = plan_.parts(item.token);
      task.out = partials_ + (size_t)item.partial * dim;
      task.out_stride = task.partial_stride * dim;
      task.maxima = maxima_ + item.partial;
      task.weights = weights_ + item.partial;
    }
    kernels_.attend(task);
  }
  model_.team.barrier();
}

const float* Step::attended_row(int token, Member& me) const {
  const int dim = config_.head_dim, parts = plan_.parts(token);
  if (parts == 1) return attended_ + (size_t)token * config_.heads * dim;
  float* row = me.merged.get();
  for (int head = 0; head < config_.heads; head++) {
    const int partial = plan_.first_partial(token) + head * parts;
    kernels_.merge(partials_ + (size_t)partial * dim, maxima_ + partial, weights_ + partial, parts, dim, row + (size_t)head * dim);
  }
  return row;
}

void Step::keep_outputs(Member& me) {
  for (int i; (i = claim(me, batch_.outputs)) >= 0;)
    memcpy(kept_ + (size_t)i * config_.hidden, hidden_ + (size_t)batch_.logit_indices[i] * config_.hidden,
           config_.hidden * sizeof(float));
  model_.team.barrier();
}

void Step::add(const Linear& linear, const Input& input, const Rows& rows, Member& me) {
  const Matrix& matrix = linear.matrix;
  const int blocks = task_blocks(matrix, rows.count);
  for (int task; (task = claim(me, (matrix.blocks + blocks - 1) / blocks)) >= 0;) {
    const int begin = task * blocks, end = std::min(begin + blocks, matrix.blocks), column = begin * kBlock;
    const int columns = std::min(end * kBlock, matrix.out) - column;
    const float* bias = matrix.bias ? matrix.bias + column : nullptr;
    multiply(kernels_, {&matrix}, input.x, rows.count, begin, end, me.product,
             [&](int row, int count, float* const* sums, int stride) {
               expand(linear, 0, input, rows, row, count, column, stride, sums[0]);
               kernels_.add(rows.hidden + (size_t)row * config_.hidden + column, config_.hidden, sums[0], stride, count, columns,
                            bias, config_.residual_multiplier);
             });
  }
  model_.team.barrier();
}

void Step::gate(const Layer& layer, const Rows& rows, Member& me) {
  const Linear &gate = layer.linears[MLX_GATE], &up = layer.linears[MLX_UP];
  const Input input = hidden_input({&gate, &up}, rows, layer.vectors[MLX_MLP_NORM], me);
  const int all_blocks = gate.matrix.blocks, blocks = task_blocks(gate.matrix, rows.count);
  for (int task; (task = claim(me, (all_blocks + blocks - 1) / blocks)) >= 0;) {
    const int begin = task * blocks, end = std::min(begin + blocks, all_blocks), column = begin * kBlock;
    const float* gate_bias = gate.matrix.bias ? gate.matrix.bias + column : nullptr;
    const float* up_bias = up.matrix.bias ? up.matrix.bias + column : nullptr;
    multiply(kernels_, {&gate.matrix, &up.matrix}, input.x, rows.count, begin, end, me.product,
             [&](int row, int count, float* const* sums, int stride) {
               expand(gate, 0, input, rows, row, count, column, stride, sums[0]);
               expand(up, 1, input, rows, row, count, column, stride, sums[1]);
               kernels_.gate(config_.activation, sums[0], sums[1], stride, count, stride, gate_bias, up_bias,
                             activated_ + row * activated_stride_ + column, activated_stride_);
             });
  }
  model_.team.barrier();
}

void Step::project_logits(const Rows& rows, Member& me) {
  const Matrix& matrix = model_.head.matrix;
  const Input input = hidden_input({&model_.head}, rows, model_.final_norm, me);
  const int blocks = task_blocks(matrix, rows.count);
  for (int task; (task = claim(me, (matrix.blocks + blocks - 1) / blocks)) >= 0;) {
    const int begin = task * blocks, end = std::min(begin + blocks, matrix.blocks), column = begin * kBlock;
    const int columns = std::min(end * kBlock, matrix.out) - column;
    multiply(kernels_, {&matrix}, input.x, rows.count, begin, end, me.product,
             [&](int row, int count, float* const* sums, int stride) {
               for (int i = 0; i < count; i++) {
                 const float* source = sums[0] + (size_t)i * stride;
                 float* target = logits_ + (size_t)(row + i) * config_.vocab + column;
                 for (int c = 0; c < columns; c++) target[c] = source[c] * config_.logit_multiplier;
               }
             });
  }
  model_.team.barrier();
}

}  // namespace mlx

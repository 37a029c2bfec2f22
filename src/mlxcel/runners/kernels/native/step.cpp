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
  forms_ = kernels_.operand_form(model.head, batch.outputs);
  for (const Layer& layer : model.layers)
    for (const Matrix& matrix : layer.matrices)
      for (int rows : {batch.tokens, batch.outputs}) forms_ |= kernels_.operand_form(matrix, rows);
  widest_ = std::max({config_.hidden, config_.intermediate, (int)width});
  model.operand.reserve(batch.tokens, widest_, forms_);
}

void Step::run(int member) {
  Member& me = model_.members[member];
  me.attention.reserve(attend_scratch_floats());
  me.scratch.reserve(widest_ + kUnit);
  me.merged.reserve((size_t)config_.heads * config_.head_dim);
  me.operand.reserve(std::min(batch_.tokens, kPrivateRows), widest_, forms_);
  kernels_.begin();
  embed(me);
  int rows = batch_.tokens;
  float* hidden = hidden_;
  const auto hidden_row = [&](int row) { return hidden + (size_t)row * config_.hidden; };
  for (int i = 0; i < config_.layers; i++) {
    const Layer& layer = model_.layers[i];
    const Matrix* m = layer.matrices;
    const bool last = i + 1 == config_.layers;
    attention_inputs(layer, operand({&m[MLX_Q], &m[MLX_K], &m[MLX_V]}, rows, layer.vectors[MLX_INPUT_NORM], me, hidden_row), me);
    attend(layer, last, me);
    // What follows the last attention matters only for the rows whose logits are wanted.
    const bool trims = last && batch_.outputs < batch_.tokens;
    if (trims) {
      keep_outputs(me);
      hidden = kept_;
      rows = batch_.outputs;
      if (!rows) break;
    }
    const auto attended = [&](int row) { return attended_row(trims ? batch_.logit_indices[row] : row, me); };
    add(m[MLX_O], operand({&m[MLX_O]}, rows, nullptr, me, attended), hidden, rows, me);
    gate(layer, operand({&m[MLX_GATE], &m[MLX_UP]}, rows, layer.vectors[MLX_MLP_NORM], me, hidden_row), rows, me);
    const auto activated = [&](int row) { return activated_ + row * activated_stride_; };
    add(m[MLX_DOWN], operand({&m[MLX_DOWN]}, rows, nullptr, me, activated), hidden, rows, me);
  }
  if (batch_.outputs) project_logits(operand({&model_.head}, batch_.outputs, model_.final_norm, me, hidden_row), me);
  kernels_.end();
}

void Step::embed(Member& me) {
  for (int token; (token = claim(me, batch_.tokens)) >= 0;)
    kernels_.embed(model_.embedding, batch_.token_ids[token], config_.embedding_multiplier,
                   hidden_ + (size_t)token * config_.hidden);
  model_.team.barrier();
}

template <class RowAt>
Operand Step::operand(std::initializer_list<const Matrix*> matrices, int rows, const float* norm, Member& me,
                                   RowAt row_at) {
  int forms = 0;
  for (const Matrix* matrix : matrices) forms |= kernels_.operand_form(*matrix, rows);
  const int width = (*matrices.begin())->in;
  const bool shared = rows > kPrivateRows;
  const Operand operand = (shared ? model_.operand : me.operand).view(width);
  const auto prepare = [&](int row) {
    kernels_.prepare(row_at(row), width, norm, config_.norm_eps, forms, operand, row, me.scratch.get());
  };
  if (shared) {
    for (int row; (row = claim(me, rows)) >= 0;) prepare(row);
    model_.team.barrier();
  } else {
    for (int row = 0; row < rows; row++) prepare(row);
  }
  return operand;
}

int Step::task_blocks(const Matrix& matrix, int rows) const {
  const bool tiles = kernels_.operand_form(matrix, rows) & kFormTiles;
  const int even = matrix.blocks / (model_.team.members() * (tiles ? kTileTasksPerMember : kTasksPerMember));
  return std::clamp(even / 2 * 2, 2, kMaxTaskBlocks);
}

void Step::attention_inputs(const Layer& layer, const Operand& x, Member& me) {
  const int heads = config_.heads, kv_heads = config_.kv_heads, blocks = config_.head_dim / kBlock, rows = batch_.tokens;
  for (int task; (task = claim(me, heads + 2 * kv_heads)) >= 0;) {
    const int slot = task < heads ? MLX_Q : task < heads + kv_heads ? MLX_K : MLX_V;
    const int head = slot == MLX_Q ? task : (task - heads) % kv_heads;
    multiply(kernels_, {&layer.matrices[slot]}, x, rows, head * blocks, (head + 1) * blocks, me.product,
             [&](int row, int count, float* const* sums, int) { finish_heads(layer, slot, head, row, count, sums[0]); });
  }
  model_.team.barrier();
}

void Step::finish_heads(const Layer& layer, int slot, int head, int row_begin, int rows, float* heads) {
  const Matrix& matrix = layer.matrices[slot];
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

void Step::add(const Matrix& matrix, const Operand& x, float* hidden, int rows, Member& me) {
  const int blocks = task_blocks(matrix, rows);
  for (int task; (task = claim(me, (matrix.blocks + blocks - 1) / blocks)) >= 0;) {
    const int begin = task * blocks, end = std::min(begin + blocks, matrix.blocks), column = begin * kBlock;
    const int columns = std::min(end * kBlock, matrix.out) - column;
    const float* bias = matrix.bias ? matrix.bias + column : nullptr;
    multiply(kernels_, {&matrix}, x, rows, begin, end, me.product, [&](int row, int count, float* const* sums, int stride) {
      kernels_.add(hidden + (size_t)row * config_.hidden + column, config_.hidden, sums[0], stride, count, columns, bias,
                   config_.residual_multiplier);
    });
  }
  model_.team.barrier();
}

void Step::gate(const Layer& layer, const Operand& x, int rows, Member& me) {
  const Matrix &gate = layer.matrices[MLX_GATE], &up = layer.matrices[MLX_UP];
  const int blocks = task_blocks(gate, rows);
  for (int task; (task = claim(me, (gate.blocks + blocks - 1) / blocks)) >= 0;) {
    const int begin = task * blocks, end = std::min(begin + blocks, gate.blocks), column = begin * kBlock;
    const float* gate_bias = gate.bias ? gate.bias + column : nullptr;
    const float* up_bias = up.bias ? up.bias + column : nullptr;
    multiply(kernels_, {&gate, &up}, x, rows, begin, end, me.product, [&](int row, int count, float* const* sums, int stride) {
      kernels_.gate(config_.activation, sums[0], sums[1], stride, count, stride, gate_bias, up_bias,
                    activated_ + row * activated_stride_ + column, activated_stride_);
    });
  }
  model_.team.barrier();
}

void Step::project_logits(const Operand& x, Member& me) {
  const Matrix& matrix = model_.head;
  const int rows = batch_.outputs, blocks = task_blocks(matrix, rows);
  for (int task; (task = claim(me, (matrix.blocks + blocks - 1) / blocks)) >= 0;) {
    const int begin = task * blocks, end = std::min(begin + blocks, matrix.blocks), column = begin * kBlock;
    const int columns = std::min(end * kBlock, matrix.out) - column;
    multiply(kernels_, {&matrix}, x, rows, begin, end, me.product, [&](int row, int count, float* const* sums, int stride) {
      for (int i = 0; i < count; i++) {
        const float* source = sums[0] + (size_t)i * stride;
        float* target = logits_ + (size_t)(row + i) * config_.vocab + column;
        for (int c = 0; c < columns; c++) target[c] = source[c] * config_.logit_multiplier;
      }
    });
  }
  model_.team.barrier();
}

namespace {

// Tokens run at once. More would not be faster, but their activations would leave the second-level cache, and the buffers
// of a step would grow with them.
constexpr int kPassTokens = 512;

// Tokens [begin, end) of a batch as a batch of their own. A row that is cut goes on in the next pass.
struct Pass {
  mlx_batch batch;
  std::vector<int32_t> row_starts, logit_indices;

  Pass(const mlx_batch& whole, int begin, int end) : batch(whole) {
    int first = 0;
    while (whole.row_starts[first + 1] <= begin) first++;
    row_starts.push_back(0);
    for (int row = first; row < whole.rows && whole.row_starts[row] < end; row++)
      row_starts.push_back(std::min(whole.row_starts[row + 1], end) - begin);
    for (int i = 0; i < whole.outputs; i++)
      if (whole.logit_indices[i] >= begin && whole.logit_indices[i] < end) logit_indices.push_back(whole.logit_indices[i] - begin);
    batch.tokens = end - begin;
    batch.rows = (int)row_starts.size() - 1;
    batch.outputs = (int)logit_indices.size();
    batch.token_ids += begin;
    batch.positions += begin;
    batch.block_tables += (size_t)first * whole.max_blocks;
    batch.row_starts = row_starts.data();
    batch.logit_indices = logit_indices.data();
  }
};

void run(Model& model, const mlx_batch& batch, float* logits) {
  Step step(model, batch, logits);
  model.team.run([](void* argument, int member) { ((Step*)argument)->run(member); }, &step);
}

}  // namespace

void forward(Model& model, const mlx_batch& batch, float* logits) {
  check_batch(model, batch);
  if (batch.tokens <= kPassTokens) return run(model, batch, logits);
  for (int begin = 0; begin < batch.tokens; begin += kPassTokens) {
    const Pass pass(batch, begin, std::min(begin + kPassTokens, batch.tokens));
    run(model, pass.batch, logits);
    logits += (size_t)pass.batch.outputs * model.config.vocab;
  }
}

}  // namespace mlx

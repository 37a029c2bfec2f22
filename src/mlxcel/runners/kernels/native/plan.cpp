#include <algorithm>
#include <stdexcept>

#include "step.h"

namespace mlx {

namespace {

// Rows that feed at most this many tokens (decoding, drafts) attend token by token, so that a draft is scored bit by bit
// as the plain decode step would.
constexpr int kFewTokens = 8;
constexpr int kMaxParts = 16;

// Positions per part: depends on the context alone, so results depend neither on the threads nor on other rows.
int part_tokens(int context) {
  const int even = (context + kMaxParts - 1) / kMaxParts;
  return std::max(kChunk, (even + kChunk - 1) / kChunk * kChunk);
}

void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

}  // namespace

Plan::Plan(const Model& model, const mlx_batch& batch)
    : row_of_(batch.tokens), parts_(batch.tokens, 1), first_partial_(batch.tokens, -1) {
  const mlx_config& c = model.config;
  for (int row = 0; row < batch.rows; row++) {
    const int start = batch.row_starts[row], stop = batch.row_starts[row + 1];
    std::fill(row_of_.begin() + start, row_of_.begin() + stop, row);
    if (stop - start <= kFewTokens) {
      for (int token = start; token < stop; token++) add_parts(model, batch, row, token);
      continue;
    }
    for (int token = start; token < stop; token += kAttendRows) {
      const int rows = std::min(kAttendRows, stop - token);
      for (int head = 0; head < c.heads; head++)
        items_.push_back({true, row, token, rows, head, 0, batch.positions[token + rows - 1] + 1, -1});
    }
  }
  deal(model.config.threads);
}

// Long items first, so that the short ones fill the gaps at the end, and dealt out like cards: each member begins with a
// consecutive share of the list.
void Plan::deal(int members) {
  const auto cost = [](const AttendItem& item) { return (long)item.count * (item.end - item.begin); };
  std::stable_sort(items_.begin(), items_.end(), [&](const AttendItem& a, const AttendItem& b) { return cost(a) > cost(b); });
  const int count = (int)items_.size();
  std::vector<AttendItem> dealt(count);
  int card = 0;
  for (int round = 0; card < count; round++)
    for (int member = 0; member < members; member++) {
      const int begin = (int)((long)count * member / members), end = (int)((long)count * (member + 1) / members);
      if (begin + round < end) dealt[begin + round] = items_[card++];
    }
  items_ = std::move(dealt);
}

void Plan::add_parts(const Model& model, const mlx_batch& batch, int row, int token) {
  const mlx_config& c = model.config;
  const int context = batch.positions[token] + 1, step = part_tokens(context);
  const int parts = (context + step - 1) / step;
  if (parts > 1) {
    parts_[token] = parts;
    first_partial_[token] = partial_count_;
    partial_count_ += parts * c.heads;
  }
  const int group = c.heads / c.kv_heads;
  for (int kv_head = 0; kv_head < c.kv_heads; kv_head++)
    for (int part = 0; part < parts; part++) {
      const int partial = parts > 1 ? first_partial_[token] + kv_head * group * parts + part : -1;
      items_.push_back({false, row, token, 1, kv_head, part * step, std::min(context, (part + 1) * step), partial});
    }
}

void check_batch(const Model& model, const mlx_batch& b) {
  const mlx_config& c = model.config;
  require(b.tokens > 0 && b.rows > 0 && b.outputs >= 0 && b.max_blocks > 0, "a batch needs tokens and rows");
  require(b.row_starts[0] == 0 && b.row_starts[b.rows] == b.tokens, "row_starts must run from 0 to the number of tokens");
  require(b.rotary_half >= 0 && 2 * b.rotary_half <= c.head_dim, "rotary tables are wider than a head");
  for (int row = 0; row < b.rows; row++) {
    require(b.row_starts[row] < b.row_starts[row + 1], "a row of the batch is empty");
    for (int token = b.row_starts[row]; token < b.row_starts[row + 1]; token++) {
      const int position = b.positions[token];
      require(b.token_ids[token] >= 0 && b.token_ids[token] < c.vocab, "a token id lies outside the vocabulary");
      require(position >= 0 && position < b.position_count, "a position lies outside the rotary tables");
      require(position / kTokens < b.max_blocks, "a position lies outside its row's block table");
      require(token == b.row_starts[row] || position == b.positions[token - 1] + 1, "positions of a row must be consecutive");
    }
    for (int block = 0; block <= b.positions[b.row_starts[row + 1] - 1] / kTokens; block++) {
      const int id = b.block_tables[(size_t)row * b.max_blocks + block];
      require(id >= 0 && id < c.block_count, "a block id lies outside the KV pool");
    }
  }
  require(!b.adapter_scales || b.adapters == model.adapters, "adapter scales are given for another number of adapters");
  for (int i = 0; i < b.outputs; i++) {
    require(b.logit_indices[i] >= 0 && b.logit_indices[i] < b.tokens, "a logit index lies outside the batch");
    require(i == 0 || b.logit_indices[i - 1] < b.logit_indices[i], "logit indices must ascend");
  }
}

}  // namespace mlx

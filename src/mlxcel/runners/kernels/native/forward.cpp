// A batch in passes of bounded size.
#include <algorithm>

#include "step.h"

namespace mlx {

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
    if (batch.adapter_scales) batch.adapter_scales += (size_t)first * whole.adapters;
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

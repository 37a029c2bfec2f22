// One matrix product on its own, for tests and benchmarks.
#include <string.h>

#include <algorithm>
#include <chrono>

#include "model.h"

namespace mlx {

namespace {

struct Product {
  const Kernels& kernels;
  Team& team;
  const Matrix& matrix;
  const float* x;
  int rows;
  float* y;
  int form;
  OperandBuffer memory;
  std::vector<Buffer<float>> scratch;
  std::vector<Buffer<uint16_t>> panels;
};

constexpr int kTaskBlocks = 4;

void multiply(void* argument, int member) {
  Product& p = *(Product*)argument;
  const Matrix& m = p.matrix;
  const Operand operand = p.memory.view(m.in);
  float* scratch = p.scratch[member].reserve(std::max<size_t>(m.padded_in, (size_t)kTileRows * kTaskBlocks * kBlock));
  p.kernels.begin();
  for (int row; (row = p.team.claim(member, p.rows)) >= 0;)
    p.kernels.prepare(p.x + (size_t)row * m.in, m.in, nullptr, 0.0f, p.form, operand, row, scratch);
  p.team.barrier();
  uint16_t* panel = p.form & kFormTiles ? p.panels[member].reserve((size_t)kTaskBlocks * kBlock * m.padded_in) : nullptr;
  for (int task; (task = p.team.claim(member, (m.blocks + kTaskBlocks - 1) / kTaskBlocks)) >= 0;) {
    const int begin = task * kTaskBlocks, end = std::min(begin + kTaskBlocks, m.blocks), columns = std::min(end * kBlock, m.out) - begin * kBlock;
    if (panel) p.kernels.load_panel(m, begin, end, panel);
    for (int row = 0; row < p.rows; row += kTileRows) {
      const int count = std::min(kTileRows, p.rows - row);
      p.kernels.linear(m, p.form, operand, row, row + count, begin, end, panel, scratch, kTaskBlocks * kBlock);
      float* target = p.y + (size_t)row * m.out + begin * kBlock;
      for (int i = 0; i < count; i++) memset(target + (size_t)i * m.out, 0, columns * sizeof(float));
      p.kernels.add(target, m.out, scratch, kTaskBlocks * kBlock, count, columns, m.bias ? m.bias + begin * kBlock : nullptr, 1.0f);
    }
  }
  p.kernels.end();
}

}  // namespace

double time_linear(const Kernels& kernels, Team& team, const Matrix& matrix, const float* x, int rows, float* y, int repeats) {
  Product product{kernels, team, matrix, x, rows, y, kernels.operand_form(matrix, rows), {}, {}, {}};
  product.memory.reserve(rows, matrix.in, product.form);
  product.scratch = std::vector<Buffer<float>>(team.members());
  product.panels = std::vector<Buffer<uint16_t>>(team.members());
  double best = 1e9;
  for (int i = 0; i < repeats; i++) {
    const auto start = std::chrono::steady_clock::now();
    team.run(multiply, &product);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace mlx

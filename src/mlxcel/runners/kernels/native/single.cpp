// One matrix product on its own, for tests and benchmarks.
#include <string.h>

#include <algorithm>
#include <chrono>

#include "model.h"
#include "product.h"

namespace mlx {

namespace {

struct Single {
  const Kernels& kernels;
  Team& team;
  const Matrix& matrix;
  const float* x;
  int rows;
  float* y;
  int form;
  OperandBuffer memory;
  std::vector<Buffer<float>> scratch;
  std::vector<ProductMemory> products;
};

constexpr int kTaskBlocks = 8;

void run(void* argument, int member) {
  Single& p = *(Single*)argument;
  const Matrix& m = p.matrix;
  const Operand operand = p.memory.view(m.in);
  float* scratch = p.scratch[member].reserve(m.padded_in);
  p.kernels.begin();
  for (int row; (row = p.team.claim(member, p.rows)) >= 0;)
    p.kernels.prepare(p.x + (size_t)row * m.in, m.in, nullptr, 0.0f, p.form, operand, row, scratch);
  p.team.barrier();
  for (int task; (task = p.team.claim(member, (m.blocks + kTaskBlocks - 1) / kTaskBlocks)) >= 0;) {
    const int begin = task * kTaskBlocks, end = std::min(begin + kTaskBlocks, m.blocks), column = begin * kBlock;
    const int columns = std::min(end * kBlock, m.out) - column;
    multiply(p.kernels, {&m}, operand, p.rows, begin, end, p.products[member], [&](int row, int count, float* const* sums, int stride) {
      float* target = p.y + (size_t)row * m.out + column;
      for (int i = 0; i < count; i++) memset(target + (size_t)i * m.out, 0, columns * sizeof(float));
      p.kernels.add(target, m.out, sums[0], stride, count, columns, m.bias ? m.bias + column : nullptr, 1.0f);
    });
  }
  p.kernels.end();
}

}  // namespace

double time_linear(const Kernels& kernels, Team& team, const Matrix& matrix, const float* x, int rows, float* y, int repeats) {
  Single single{kernels, team, matrix, x, rows, y, kernels.operand_form(matrix, rows), {}, {}, {}};
  single.memory.reserve(rows, matrix.in, single.form);
  single.scratch = std::vector<Buffer<float>>(team.members());
  single.products = std::vector<ProductMemory>(team.members());
  double best = 1e9;
  for (int i = 0; i < repeats; i++) {
    const auto start = std::chrono::steady_clock::now();
    team.run(run, &single);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace mlx

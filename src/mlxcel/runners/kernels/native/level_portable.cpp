#include "layout.h"
#include "simd_portable.h"
//
#include "kernels.h"

namespace mlx {
const Kernels* portable_kernels() {
  static constexpr Kernels table = base_kernels();
  return &table;
}
}  // namespace mlx

#include "layout.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include "simd_neon.h"
//
#include "kernels.h"

namespace mlx {
const Kernels* neon_kernels() {
  static constexpr Kernels table = base_kernels();
  return &table;
}
}  // namespace mlx
#else
namespace mlx {
const Kernels* neon_kernels() { return nullptr; }
}  // namespace mlx
#endif

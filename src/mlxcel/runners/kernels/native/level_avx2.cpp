#include "layout.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd_avx2.h"
//
#include "kernels.h"

namespace mlx {
const Kernels* avx2_kernels() {
  static constexpr Kernels table = base_kernels();
  return &table;
}
}  // namespace mlx
#else
namespace mlx {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace mlx
#endif

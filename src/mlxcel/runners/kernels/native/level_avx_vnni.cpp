#include "layout.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && defined(__AVXVNNI__)
#include "simd_avx2.h"
//
#include "kernels.h"

namespace mlx {
const Kernels* avx_vnni_kernels() {
  static constexpr Kernels table = base_kernels();
  return &table;
}
}  // namespace mlx
#else
namespace mlx {
const Kernels* avx_vnni_kernels() { return nullptr; }
}  // namespace mlx
#endif
